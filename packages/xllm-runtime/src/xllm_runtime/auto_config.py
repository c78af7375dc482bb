"""Fills in the options that a user left to us, once the model is known. Knows nothing of devices or of command lines."""

from __future__ import annotations

from dataclasses import replace

from xllm_framework.config import SchedulerConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import LayerGroup, layer_groups
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
    """Return the options for an engine on `device`.

    How long a step may take that computes prompts: what the user said; else no longer than the interval between tokens that he
    aims at, and on a CPU short in any case.
    """
    if config.prefill_step_ms:
        return config
    limits_ms = [CPU_PREFILL_STEP_MS] if device == "cpu" else []
    if config.default_tpot_slo_ms:
        limits_ms.append(config.default_tpot_slo_ms)
    return replace(config, prefill_step_ms=min(limits_ms)) if limits_ms else config


def largest_chunk(config: SchedulerConfig) -> int:
    """Return how many tokens of one prompt a step computes at most, as far as the options say."""
    return (config.enable_chunked_prefill and config.max_prefill_chunk) or config.max_num_batched_tokens


def pays_to_overlap(config: XLLMConfig, num_cores: int) -> bool:
    """Whether planning a step while another is computed can save time on a CPU: only beside cores that compute nothing."""
    return 0 < config.execution.threads < num_cores


def cache_window(args: ModelArgs) -> int:
    """Return the sliding window behind which a model needs no KV at all; 0 if any layer attends to everything."""
    slides_everywhere = len(set(args.sliding_window_layers)) == args.num_layers
    return args.sliding_window or 0 if slides_everywhere else 0


def cache_groups(args: ModelArgs, max_model_len: int) -> tuple[LayerGroup, ...]:
    """Return the groups of layers with a block table each; one for all where a window would let no block go."""
    window = args.sliding_window or 0
    if window >= max_model_len:
        window = 0
    sliding = set(args.sliding_window_layers)
    return layer_groups([window if layer in sliding else 0 for layer in range(args.num_layers)])
