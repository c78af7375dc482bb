"""From a checked body to an answer: prepares, submits, gathers, renders. Knows nothing of routes or sockets."""
