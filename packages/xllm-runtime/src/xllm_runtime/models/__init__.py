"""Models and the table that finds them. The table imports no model before one is chosen."""

from xllm_runtime.models.registry import ModelChoice, select_model

__all__ = ["ModelChoice", "select_model"]
