"""How many tokens a step may compute within a time. Knows nothing of what the tokens are."""

from __future__ import annotations

from xllm_scheduler.latency.model import LatencyModel

MAX_TOKEN_BUDGET = 4096


def find_token_budget(model: LatencyModel, limit_s: float, max_tokens: int = MAX_TOKEN_BUDGET) -> int:
    """Return the most prompt tokens, from 1 to `max_tokens`, that one step computes in `limit_s` seconds."""
    return max(1, model.longest_chunk(0, max_tokens, limit_s - model.constant_s))
