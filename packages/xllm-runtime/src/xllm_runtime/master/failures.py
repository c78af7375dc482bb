"""Turns the `kind` under which an error travels back into its class. Knows nothing of how it travelled."""

from __future__ import annotations

from xllm_framework.errors import XLLMError
from xllm_framework.request.messages import EngineFailed


def error_of(failure: EngineFailed) -> XLLMError:
    """Return the error that an engine side reported, as the class it was raised with there (`XLLMError` if unknown)."""
    return _classes(XLLMError).get(failure.kind, XLLMError)(failure.message)


def _classes(root: type[XLLMError]) -> dict[str, type[XLLMError]]:
    """Return kind -> class of `root` and all that derive from it."""
    found = {root.kind: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found
