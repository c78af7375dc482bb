"""Tool-call parsers, one module a family of formats. `registry` finds them by name; importing it loads none of them."""
