"""How much runs at once, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PriorityStrategy = Literal[
    "fcfs",
    "priority",
    "fair",
    "deadline",
    "sjf",
    "density",
    "decode_density",
    "decode_deadline",
    "multi_slo_and_prio",
    "decode_urgency_density",
    "urgency_priority",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduler options."""

    policy: Literal["decode_first", "prefill_first", "unified"] = "decode_first"
    """decode_first mixes decodes with prefill chunks in one step; prefill_first runs them in separate steps; unified takes
    both from one list in the order of `priority_strategy` and may preempt from its end to admit from its front."""
    priority_strategy: PriorityStrategy = "fair"
    """Who is served first: fcfs (by arrival), priority (then arrival), fair (priority, then arrival, but short prompts overtake
    long ones for a bounded time), or by objectives, as docs/concepts/scheduling.md says."""
    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens that one step computes at most."""
    enable_schedule_overlap: bool = False
    """Plan each step while the one before it is computed, in a thread of its own; the answers are the same. Left off on a CPU unless
    `threads` leaves a core that computes nothing."""
    max_prefill_chunk: int = 0
    """Prompt tokens of one sequence that one step computes at most; 0 is as many as the step takes."""
    prefill_step_ms: float = 0.0
    """Milliseconds that a step which computes prompts should take, twice that in calm times; their chunks are sized by how long the
    steps before took. 0 takes 75 on a CPU and `default_tpot_slo_ms` anywhere, the smaller of both, else sets no limit."""
    max_encoder_tokens: int = 8192
    """Embeddings of images and videos that one step makes at most, unless one medium alone has more."""
    enable_chunked_prefill: bool = True
    """Split prompts over steps; without it a prompt waits until it fits a step whole."""
    share_leftover_tokens: bool = False
    """Let prompts take longer chunks than `max_prefill_chunk` when tokens of a step are left over."""
    max_block_use: float = 0.95
    """Share of the KV blocks in use from which no further sequence is admitted."""
    chunked_match_frequency: int = 2
    """How often, over its chunks, a prompt looks into the prefix cache again; 0 never does."""
    enable_in_batch_prefix: bool = True
    """Let prompts of one step share the blocks that another prompt of the same step computes."""
    enable_zero_evict: bool = False
    """Admit a sequence only if, by its assumed output length, nobody will have to be preempted."""
    zero_evict_output_tokens: int = 256
    """Output length that `enable_zero_evict` assumes of each sequence, at most its own max_tokens."""
    enable_online_preempt_offline: bool = True
    """Let online requests take the blocks and the places of running offline ones."""
    latency_model: str = ""
    """JSON file with the step times of this device (`xllm_scheduler.latency`); empty takes rough numbers for ordering, and
    limits no step by its time."""
    measure_latency: bool = False
    """Measure step times at start, which takes some seconds, unless `latency_model` names a file that exists; if it names one
    that does not, they are saved there."""
    default_ttft_slo_ms: float = 0.0
    """Time to first token to aim at for requests that bring none; also the limit of a prefill step's time. 0 is none."""
    default_tpot_slo_ms: float = 0.0
    """Time between tokens to aim at for requests that bring none; also the limit of a decode step's time. 0 is none."""
    urgency_coefficient: float = 1.0
    """A sequence is urgent when the time left to its objective is below this times the time of all work at hand."""
    enable_starvation_guard: bool = True
    """Serve prompts that missed their objective by far before others, so that none waits for ever."""
    starvation_threshold: float = 1.0
    """A sequence is starved when it is late by more than this times its objective."""
    max_num_waiting: int = 1024
    """Requests that wait at most; more are refused with 429."""
    seed: int = 0
    """Seed of requests that bring none; 0 draws one at start."""
