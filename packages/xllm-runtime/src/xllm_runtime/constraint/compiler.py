"""Compiles constraints for one model, and keeps those that were used last. Knows nothing of requests.

The library is imported when the first constraint comes: it takes a moment that most starts need not pay.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from xllm_framework.constraint import Constraint, Grammar
from xllm_framework.errors import InvalidRequest

if TYPE_CHECKING:
    from xllm_runtime.constraint.vocabulary import Vocabulary

MAX_CACHED = 64

CacheKey = tuple[object, ...]


class GrammarCompiler:
    """Thread-safe. Of grammars that were compiled, the last used stay at hand.

    Args:
        create_vocabulary: called once, when it is needed; may take seconds.
    """

    def __init__(self, create_vocabulary: Callable[[], Vocabulary]) -> None:
        self._create_vocabulary = create_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._cache: OrderedDict[CacheKey, Grammar] = OrderedDict()
        self._cache_lock = threading.Lock()

    def find(self, constraint: Constraint) -> Grammar | None:
        """Return the compiled grammar if it is at hand; at once."""
        key = _key(constraint)
        with self._cache_lock:
            grammar = self._cache.get(key)
            if grammar is not None:
                self._cache.move_to_end(key)
        return None if grammar is None else self._after_thinking(grammar, constraint)

    def compile(self, constraint: Constraint) -> Grammar:
        """Return the compiled grammar; may take seconds.

        Raises:
            InvalidRequest: it cannot be compiled, nothing satisfies it, or the model's tokenizer cannot be constrained.
        """
        found = self.find(constraint)
        if found is not None:
            return found
        grammar = self._compile(constraint)
        with self._cache_lock:
            self._cache[_key(constraint)] = grammar
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return self._after_thinking(grammar, constraint)

    def _compile(self, constraint: Constraint) -> Grammar:
        """Return the grammar without the thinking before it."""
        from xllm_runtime.constraint.free import FreeGrammar
        from xllm_runtime.constraint.grammar_text import grammar_text
        from xllm_runtime.constraint.matcher import CompiledGrammar

        vocabulary = self._find_vocabulary()
        if constraint.kind == "free":
            return FreeGrammar(vocabulary)
        try:
            return CompiledGrammar(vocabulary.tokenizer, grammar_text(constraint, vocabulary), constraint.param)
        except InvalidRequest:
            raise
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise InvalidRequest(f"{constraint.param} cannot be compiled: {error}.", constraint.param) from error

    def _after_thinking(self, grammar: Grammar, constraint: Constraint) -> Grammar:
        from xllm_runtime.constraint.thinking import ThinkingGrammar

        if constraint.reasoning is None:
            return grammar
        return ThinkingGrammar(grammar, constraint.reasoning, self._find_vocabulary())

    def _find_vocabulary(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._create_vocabulary()
            return self._vocabulary


def _key(constraint: Constraint) -> CacheKey:
    return constraint.kind, constraint.text
