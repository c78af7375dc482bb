"""How long a step takes on the virtual device. Knows nothing of why the step holds what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLatencyModel:
    """Step time = constant + tokens to compute + KV tokens that attention reads, each times its cost in microseconds.

    The defaults resemble a small model on one accelerator; they are made up, and only comparisons mean something.
    """

    constant_us: float = 4000.0
    per_token_us: float = 25.0
    per_kv_token_us: float = 0.02

    def step_s(self, batch: Batch) -> float:
        """Return the seconds that `batch` takes."""
        num_kv_tokens = sum(
            item.num_scheduled_tokens * (2 * item.start + item.num_scheduled_tokens + 1) // 2 for item in batch
        )
        return 1e-6 * (self.constant_us + self.per_token_us * batch.num_tokens + self.per_kv_token_us * num_kv_tokens)
