"""One round of beam search in torch with fixed shapes, for devices: nothing is read back, so rounds can be captured.

R searches have W rows each; a search with fewer beams leaves its last rows dead (score -infinity). Candidates are compared as one
64-bit number: the score's bits in the order of floats, then the candidate's place, which settles ties as
`xllm_kernels.ops.beam_select` does. Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_PATH = float("-inf")
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class DevicePaths:
    """One level of `ValidPaths` on a device."""

    starts: torch.Tensor
    """int64 [nodes + 1]"""
    tokens: torch.Tensor
    """int64 [edges]"""
    most_children: int


@dataclass(slots=True)
class BeamRows:
    """The beams of R searches after a round, W rows each."""

    token_ids: torch.Tensor
    """int64 [R, W]"""
    parents: torch.Tensor
    """int64 [R, W], rows of the round before within the search."""
    nodes: torch.Tensor
    """int64 [R, W]; -1 for the dead."""
    logprobs: torch.Tensor
    """float32 [R, W]"""
    scores: torch.Tensor
    """float32 [R, W]"""


def select_beams(
    logits: torch.Tensor,
    scores: torch.Tensor,
    nodes: torch.Tensor,
    paths: DevicePaths | None,
    widths: torch.Tensor,
    num_beams: int,
) -> BeamRows:
    """Return the best continuations of each search's rows, best first.

    logits: [R * V, vocab] of V rows a search; scores: float32 [R, V]; nodes: int64 [R, V], -1 for the dead; `paths` None lets
    every token follow; widths: int64 [R], beams of each search, at most `num_beams` = W.
    """
    num_searches = len(scores)
    normaliser = logits.float().logsumexp(-1, keepdim=True)
    if paths is None:
        tokens, best = _best(logits.float(), min(num_beams, logits.shape[1]))
        logprobs = best - normaliser
        entries = torch.full_like(tokens, -1)
    else:
        entries, is_child = _children(nodes.flatten(), paths)
        tokens = paths.tokens[entries]
        logprobs = (logits.gather(1, tokens).float() - normaliser).masked_fill(~is_child, NO_PATH)
    totals = (scores.flatten()[:, None] + logprobs).view(num_searches, -1)
    places, values = _best(totals, num_beams)
    alive = (values > NO_PATH) & (torch.arange(num_beams, device=values.device) < widths[:, None])
    per_row = tokens.shape[1]
    return BeamRows(
        tokens.view(num_searches, -1).gather(1, places).masked_fill(~alive, 0),
        torch.where(alive, places // per_row, 0),
        entries.view(num_searches, -1).gather(1, places).masked_fill(~alive, -1),
        logprobs.view(num_searches, -1).gather(1, places),
        values.masked_fill(~alive, NO_PATH),
    )


def _children(nodes: torch.Tensor, paths: DevicePaths) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (entries, whether each is a child): [rows, most_children] each; entries that are none are valid places."""
    begin = paths.starts[nodes.clamp(min=0)]
    end = torch.where(nodes < 0, begin, paths.starts[nodes.clamp(min=0) + 1])
    entries = begin[:, None] + torch.arange(paths.most_children, device=nodes.device)
    is_child = entries < end[:, None]
    return entries.clamp(max=len(paths.tokens) - 1), is_child


def _best(totals: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (places, values) of the `count` largest of each row [R, N], the first among equals first."""
    bits = totals.view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    place = torch.arange(totals.shape[1], device=totals.device)
    keys = (ordered << 32) | (_LOW - place)
    missing = max(count - totals.shape[1], 0)
    if missing:
        keys = torch.nn.functional.pad(keys, (0, missing), value=torch.iinfo(torch.int64).min)
    best = keys.topk(count, dim=-1).values
    places = (_LOW - (best & _LOW)).clamp(max=totals.shape[1] - 1)
    values = totals.gather(1, places)
    if missing:
        values = values.masked_fill(best == torch.iinfo(torch.int64).min, NO_PATH)
    return places, values
