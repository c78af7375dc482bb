"""Models and the tables that find them. The tables import no model before one is chosen, and no torch."""

from xllm_runtime.models.registry import ModelChoice, select_model

__all__ = ["ModelChoice", "select_model"]
