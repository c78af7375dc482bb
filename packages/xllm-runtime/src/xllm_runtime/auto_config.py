"""Fills in the options that a user left to us, once the model is known. Knows nothing of devices or of command lines."""

from __future__ import annotations

from dataclasses import replace

from xllm_framework.config import SchedulerConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.model import ModelArgs
from xllm_framework.model.source import ModelFiles

CPU_PREFILL_STEP_MS = 75.0
"""Short enough that a short prompt gets its first token in three times what it takes alone, while long ones are computed. It
costs those about a tenth of their tokens a second (benchmarks/first_token.py)."""


def model_name(config: XLLMConfig, files: ModelFiles) -> str:
    """Return the name under which the model is served: `model_id`, or the model's own."""
    return config.model.model_id or files.name


def max_model_len(config: XLLMConfig, args: ModelArgs, num_pool_tokens: int) -> int:
    """Return how many tokens one sequence can hold: by model, by option, and by a pool of `num_pool_tokens`.

    Raises:
        InvalidConfig: `max_model_len` exceeds the model's context, or the pool holds no more than one token.
    """
    model_limit = args.max_position_embeddings
    limit = config.model.max_model_len or model_limit
    if limit > model_limit:
        raise InvalidConfig(f"max_model_len {limit} exceeds the model's context of {model_limit} tokens.")
    limit = min(limit, num_pool_tokens)
    if limit < 2:
        raise InvalidConfig(
            f"max_model_len must leave room for a prompt and an output, but {limit} tokens are too few."
        )
    return limit


def scheduler_config(config: SchedulerConfig, device: str) -> SchedulerConfig:
    """Return the options for an engine on `device`: steps on a CPU are kept short unless the user said how long."""
    if device != "cpu" or config.prefill_step_ms:
        return config
    return replace(config, prefill_step_ms=CPU_PREFILL_STEP_MS)


def cache_window(args: ModelArgs) -> int:
    """Return the sliding window behind which a model needs no KV at all; 0 if any layer attends to everything."""
    slides_everywhere = len(set(args.sliding_window_layers)) == args.num_layers
    return args.sliding_window or 0 if slides_everywhere else 0
