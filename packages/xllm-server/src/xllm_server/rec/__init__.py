"""Commands around catalogues of items."""
