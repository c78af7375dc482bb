"""Tries constraints before a request is sent, so that a wrong one is refused at once. Knows nothing of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from xllm_framework.constraint import Constraint
from xllm_runtime.constraint.compiler import GrammarCompiler

if TYPE_CHECKING:
    from xllm_runtime.constraint.vocabulary import Vocabulary


class ConstraintChecker:
    """Compiles for a vocabulary of single bytes, whatever the model's. Thread-safe."""

    def __init__(self) -> None:
        self._compiler = GrammarCompiler(_vocabulary)

    def check(self, constraint: Constraint) -> None:
        """Check a constraint. May take a second for a large one; call it off the event loop.

        Raises:
            InvalidRequest: it is wrong, too large, or nothing satisfies it; `param` is the constraint's.
        """
        self._compiler.compile(msgspec.structs.replace(constraint, reasoning=None))


def _vocabulary() -> Vocabulary:
    from xllm_runtime.constraint.vocabulary import byte_vocabulary

    return byte_vocabulary()
