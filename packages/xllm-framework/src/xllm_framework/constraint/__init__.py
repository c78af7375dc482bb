"""What a text must look like, and the state of one that is being generated. Knows no library of grammars."""

from xllm_framework.constraint.constraint import Constraint, ConstraintKind, ReasoningTags
from xllm_framework.constraint.state import ConstraintState, Grammar

__all__ = ["Constraint", "ConstraintKind", "ConstraintState", "Grammar", "ReasoningTags"]
