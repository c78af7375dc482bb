"""Which data-parallel rank a waiting sequence goes to. Knows nothing of whether it is admitted there.

A sequence stays where it is placed until it ends or is preempted, because its KV lies there.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

from xllm_framework.kv_cache import NO_MATCH, BlockManager, PrefixMatch
from xllm_framework.request import Request, Sequence
from xllm_scheduler.budget import StepBudget


@dataclass(frozen=True, slots=True)
class Placement:
    """One rank where a sequence could go, and what it would find there."""

    rank: int
    match: PrefixMatch
    """Blocks of the rank that it can share."""
    announcers: frozenset[Sequence]
    """Sequences that compute some of these blocks only in this step."""


def find_placements(
    block_managers: List[BlockManager], request: Request, sequence: Sequence, budget: StepBudget, *, can_share: bool
) -> list[Placement]:
    """Return the ranks that have tokens left in this step, the one with most blocks left after an admission first.

    Shared blocks take no room, so that prompts go where they are cached, until other ranks have much more room. Of
    equals, the one with most tokens left goes first: a burst that meets empty ranks is spread over them.
    """
    placements = [
        Placement(rank, *(_match(request, sequence, blocks) if can_share else (NO_MATCH, frozenset())))
        for rank, blocks in enumerate(block_managers)
        if budget.ranks[rank].num_tokens_left > 0
    ]
    if len(placements) > 1:
        placements.sort(key=lambda placement: _preference(placement, block_managers[placement.rank], budget))
    return placements


def _match(request: Request, sequence: Sequence, blocks: BlockManager) -> tuple[PrefixMatch, frozenset[Sequence]]:
    match = blocks.match_prefix(sequence, request.cache_salt)
    announcers = blocks.announcers(match)
    if announcers and sequence.num_tokens - len(match) * blocks.block_size < 2:
        # A row of one token may be computed as a decode is, by a kernel that does not wait for its neighbours' KV.
        match = match.shortened()
        announcers = blocks.announcers(match)
    return match, announcers


def _preference(placement: Placement, blocks: BlockManager, budget: StepBudget) -> tuple[int, int]:
    num_new = -len(placement.match)
    return (num_new - blocks.num_available_blocks, -budget.ranks[placement.rank].num_tokens_left)
