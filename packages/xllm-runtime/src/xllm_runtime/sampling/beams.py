"""One round of beam search in torch with fixed shapes, for devices: nothing is read back, so rounds can be captured.

R searches have W rows each; a search with fewer beams leaves its last rows dead (score -infinity). Candidates are compared as one
64-bit number: the score's bits in the order of floats, then the candidate's place, which settles ties as
`xllm_kernels.ops.beam_select` does. Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch

NO_PATH = float("-inf")
VOCABULARY_STEP = 8
"""The kernels read rows of logits in pieces of so many."""
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

    logits: [R * V, vocab], float32 or bfloat16, of V rows a search; scores: float32 [R, V]; nodes: int64 [R, V], -1 for
    the dead; `paths` None lets every token follow; widths: int64 [R], beams of each search, at most `num_beams` = W.
    """
    num_searches, per_search = scores.shape
    kernels = _kernels(logits, num_beams)
    if paths is None:
        tokens, best = _best(logits, min(num_beams, logits.shape[1]), kernels)
        normaliser = logits.float().logsumexp(-1) if kernels is None else kernels.log_normaliser(logits)
        totals = scores.flatten()[:, None] + (best - normaliser[:, None])
    elif kernels is None:
        totals, normaliser = _totals(logits, scores.flatten(), nodes.flatten(), paths)
    else:
        totals, normaliser = kernels.beam_scores(
            logits, scores.flatten(), nodes.flatten(), paths.starts, paths.tokens, paths.most_children
        )
    per_row = totals.shape[1]
    places, values = _best(totals.view(num_searches, -1), num_beams, kernels)
    alive = (values > NO_PATH) & (torch.arange(num_beams, device=values.device) < widths[:, None])
    parents = places // per_row
    rows = parents + torch.arange(num_searches, device=values.device)[:, None] * per_search
    if paths is None:
        entries = torch.full_like(places, -1)
        chosen = tokens.view(num_searches, -1).gather(1, places)
    else:
        entries = paths.starts[nodes.flatten()[rows].clamp(min=0)] + places % per_row
        chosen = paths.tokens[entries.clamp(max=len(paths.tokens) - 1)]
    logprobs = logits[rows, chosen].float() - normaliser[rows]
    return BeamRows(
        chosen.masked_fill(~alive, 0),
        torch.where(alive, parents, 0),
        entries.masked_fill(~alive, -1),
        logprobs.masked_fill(~alive, NO_PATH),
        values.masked_fill(~alive, NO_PATH),
    )


def _kernels(logits: torch.Tensor, num_beams: int) -> ModuleType | None:
    """Return the module of the CUDA kernels that serve `logits`, or None."""
    if logits.device.type != "cuda" or logits.shape[1] % VOCABULARY_STEP:
        return None
    from xllm_kernels import explain

    if explain("top_k", str(logits.device)):
        return None
    from xllm_kernels.cuda import beams

    return beams if num_beams <= beams.TOP_K_MAX else None


def _totals(
    logits: torch.Tensor, scores: torch.Tensor, nodes: torch.Tensor, paths: DevicePaths
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `xllm_kernels.cuda.beams.beam_scores`."""
    wide = logits.float()
    normaliser = wide.logsumexp(-1)
    entries, is_child = _children(nodes, paths)
    logprobs = (wide.gather(1, paths.tokens[entries]) - normaliser[:, None]).masked_fill(~is_child, NO_PATH)
    return scores[:, None] + logprobs, normaliser


def _children(nodes: torch.Tensor, paths: DevicePaths) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (entries, whether each is a child): [rows, most_children] each; entries that are none are valid places."""
    begin = paths.starts[nodes.clamp(min=0)]
    end = torch.where(nodes < 0, begin, paths.starts[nodes.clamp(min=0) + 1])
    entries = begin[:, None] + torch.arange(paths.most_children, device=nodes.device)
    is_child = entries < end[:, None]
    return entries.clamp(max=len(paths.tokens) - 1), is_child


def _best(totals: torch.Tensor, count: int, kernels: ModuleType | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (places, values) of the `count` largest of each row [R, N], the first among equals first; minus infinity past N."""
    if kernels is not None:
        known = min(count, totals.shape[1])
        places, values = kernels.top_k(totals, known)
        if known == count:
            return places, values
        pad = torch.nn.functional.pad
        return pad(places, (0, count - known)), pad(values, (0, count - known), value=NO_PATH)
    totals = totals.float()
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
