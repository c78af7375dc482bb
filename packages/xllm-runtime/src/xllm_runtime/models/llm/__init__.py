"""Language models in the `python` implementation: torch modules over paged KV."""
