"""The values that numeric options may take. Knows nothing of where a value was read."""

from __future__ import annotations

import math

UNLIMITED = math.inf

RANGES: dict[str, tuple[float, float]] = {
    "max_model_len": (0, UNLIMITED),
    "block_size": (1, 4096),
    "num_blocks": (0, UNLIMITED),
    "max_cache_size": (0, UNLIMITED),
    "num_state_slots": (0, UNLIMITED),
    "state_stride": (1, UNLIMITED),
    "host_blocks_factor": (0, 1024),
    "max_archive_size": (0, UNLIMITED),
    "memory_utilization": (0.01, 1),
    "max_num_seqs": (1, UNLIMITED),
    "max_num_batched_tokens": (1, UNLIMITED),
    "max_prefill_chunk": (0, UNLIMITED),
    "prefill_step_ms": (0, UNLIMITED),
    "max_num_waiting": (0, UNLIMITED),
    "max_block_use": (0.01, 1),
    "chunked_match_frequency": (0, UNLIMITED),
    "zero_evict_output_tokens": (1, UNLIMITED),
    "default_ttft_slo_ms": (0, UNLIMITED),
    "default_tpot_slo_ms": (0, UNLIMITED),
    "urgency_coefficient": (0, UNLIMITED),
    "starvation_threshold": (0, UNLIMITED),
    "dp_size": (1, 1024),
    "seed": (0, 2**63 - 1),
    "threads": (0, 4096),
    "port": (0, 65535),
    "max_body_bytes": (1, UNLIMITED),
    "max_concurrent_requests": (1, UNLIMITED),
    "shutdown_timeout": (0, UNLIMITED),
    "step_timeout": (0, UNLIMITED),
    "num_request_handling_threads": (1, 1024),
    "limit_image_per_prompt": (0, 65536),
    "limit_video_per_prompt": (0, 65536),
    "max_media_bytes": (1, UNLIMITED),
    "max_image_pixels": (1, UNLIMITED),
    "media_timeout": (0.001, UNLIMITED),
    "video_fps": (0, 1000),
    "max_video_frames": (1, 65536),
    "max_processor_cache_items": (0, UNLIMITED),
    "max_encoder_cache_size": (0, UNLIMITED),
    "max_encoder_tokens": (1, UNLIMITED),
    "num_media_threads": (1, 1024),
    "beam_width": (1, 512),
    "max_decode_rounds": (1, 8),
    "each_conversion_threshold": (1, UNLIMITED),
    "total_conversion_threshold": (1, UNLIMITED),
    "rec_worker_max_concurrency": (1, 16),
    "max_requests_per_batch": (1, 1024),
    "dit_max_num_steps": (1, 1000),
    "dit_max_images_per_request": (1, 1024),
    "dit_generation_image_area_max": (0, UNLIMITED),
    "dit_max_input_pixels": (1, 2**28),
    "dit_cache_warmup_steps": (0, 1000),
    "dit_cache_n_derivatives": (0, 8),
    "dit_cache_skip_interval_steps": (1, 1000),
    "dit_cache_residual_diff_threshold": (0, 100),
    "dit_cache_start_steps": (0, 1000),
    "dit_cache_end_steps": (0, 1000),
    "dit_cache_start_blocks": (0, 1000),
    "dit_cache_end_blocks": (0, 1000),
}
"""Option name -> (smallest, largest) value; infinity and NaN are never allowed."""


def range_error(name: str, value: object) -> str | None:
    """Return what is wrong with `value`, or None; options without a range take every value."""
    if name not in RANGES or not isinstance(value, int | float):
        return None
    low, high = RANGES[name]
    if low <= value <= high and value < UNLIMITED:
        return None
    return f"{value} is not between {low} and {high}" if high < UNLIMITED else f"{value} is not a number from {low} up"
