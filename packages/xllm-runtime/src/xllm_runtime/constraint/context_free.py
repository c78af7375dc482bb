"""What a context-free grammar may hold before anybody compiles it. Knows nothing of tokens.

Intersections and complements of terminals, which the library adds to Lark, can take it minutes, as can long chains of
terminals: both are refused.
"""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import any_to_lark

from xllm_framework.errors import InvalidRequest

MAX_LENGTH = 16 * 1024
MAX_LINES = 256
MAX_NESTING = 64
"""Brackets inside each other."""

_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|\[(?:\\.|[^\]\\\n])*\]|//.*|#.*')
_DIRECTIVES = re.compile(r"%(?!ignore\b|import\b)\w*")


def lark_grammar(text: str, param: str) -> str:
    """Return a grammar in Lark's form, which `text` has already, or GBNF.

    Raises:
        InvalidRequest: it is neither, too large, or holds what is refused; `param` names the field.
    """
    if len(text) > MAX_LENGTH or text.count("\n") >= MAX_LINES:
        raise InvalidRequest(f"{param}: a grammar has at most {MAX_LENGTH} characters in {MAX_LINES} lines.", param)
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise InvalidRequest(f"{param}: a grammar nests brackets at most {MAX_NESTING} deep.", param)
    plain = _LITERALS.sub("", text)
    if "&" in plain or "~" in plain or _DIRECTIVES.search(plain):
        raise InvalidRequest(f"{param}: & and ~ of terminals, and % directives but ignore, are not supported.", param)
    try:
        return any_to_lark(text)
    except Exception as error:  # the converter's own kind, and what broken grammars make it raise
        raise InvalidRequest(f"{param} is neither a Lark nor a GBNF grammar: {str(error)[:500]}.", param) from None
