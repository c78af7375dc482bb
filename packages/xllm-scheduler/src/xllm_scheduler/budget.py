"""What one step may still spend. Knows nothing of blocks: the block manager counts those."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

UNLIMITED = 1 << 62
"""Tokens, where no limit is set."""


@dataclass(slots=True)
class RankBudget:
    """The share of one data-parallel rank."""

    num_tokens_left: int
    """Tokens that the rank can still compute in the step."""
    num_prompt_tokens_left: int = UNLIMITED
    """Of these, tokens of prompts."""
    shortest_chunk: int = 0
    """Tokens below which a chunk is not worth a pass: fewer where the step takes on fewer of prompts at all."""
    used_s: float = 0.0
    """Seconds that what is scheduled on it will take, where a latency model is known."""


@dataclass(slots=True)
class StepBudget:
    """The limits of one step; the scheduler charges it, policies read it and may set `limit_s` and the two flags."""

    ranks: list[RankBudget]
    ttft_limit_s: float = inf
    """The most that a step should take while it computes prompts."""
    tpot_limit_s: float = inf
    """The most that a step should take while anyone decodes."""
    objective_limit_s: float = inf
    """The most that it should take by the objectives of all sequences at hand."""
    limit_s: float = inf
    """Which of these holds now; decodes ignore it unless `is_limiting_decodes`."""
    num_tokens_left: int = field(init=False)
    """Tokens that the step can still compute, on all ranks."""
    num_scheduled: int = 0
    """Sequences scheduled in this step so far."""
    can_admit: bool = True
    """False once a waiting sequence was refused, or a running one preempted: nobody else is admitted in this step."""
    num_encoder_tokens_left: int = 2**62
    """Embeddings of images and videos that the step can still make."""
    is_limiting_decodes: bool = False
    """Whether a decode that does not fit `limit_s` has to wait, too."""
    is_paced: bool = False
    """Whether steps are kept short, so that the first token of a short prompt need not wait for chunks of a long one."""
    can_preempt_to_admit: bool = False
    """Whether a waiting sequence of a higher class may take blocks from running ones of a lower class."""

    def __post_init__(self) -> None:
        self.num_tokens_left = sum(rank.num_tokens_left for rank in self.ranks)

    def charge(self, rank: int, num_tokens: int) -> None:
        """Count one scheduled sequence with `num_tokens` tokens."""
        self.ranks[rank].num_tokens_left -= num_tokens
        if num_tokens > 1:
            self.ranks[rank].num_prompt_tokens_left -= num_tokens
        self.num_tokens_left -= num_tokens
        self.num_scheduled += 1
