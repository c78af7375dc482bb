"""How much runs at once, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduler options."""

    policy: Literal["decode_first", "prefill_first"] = "decode_first"
    """decode_first mixes decodes with prefill chunks in one step; prefill_first runs them in separate steps."""
    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens that one step computes at most."""
    max_prefill_chunk: int = 0
    """Prompt tokens of one sequence that one step computes at most; 0 is as many as the step takes."""
    enable_chunked_prefill: bool = True
    """Split prompts over steps; without it a prompt waits until it fits a step whole."""
    max_num_waiting: int = 1024
    """Requests that wait at most; more are refused with 429."""
    seed: int = 0
    """Seed of requests that bring none; 0 draws one at start."""
