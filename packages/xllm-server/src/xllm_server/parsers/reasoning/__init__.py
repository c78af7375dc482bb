"""Reasoning parsers: what the model thinks, apart from what it says. `registry` finds them by name."""
