"""Compiles constraints with llguidance. Knows nothing of requests, schedulers or tensors."""

from xllm_runtime.constraint.checking import ConstraintChecker
from xllm_runtime.constraint.compiler import GrammarCompiler

__all__ = ["ConstraintChecker", "GrammarCompiler"]
