"""One module a route: paths, methods and nothing else."""
