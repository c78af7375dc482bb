"""Step caches: what one image's earlier steps computed stands in for later ones, where little changes from step to step.

One object a prompt of an image, never shared: nobody's image depends on a neighbour's cache. A policy may answer for the
whole transformer (`predicted`) or for a span of blocks (`filled`). Knows nothing of batches.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

from xllm_framework.step_cache import StepCacheParams


class StepCache(Protocol):
    """A policy with its memory; steps are numbered from 0 and come in order."""

    @property
    def span(self) -> tuple[int, int] | None:
        """Blocks, first to last (exclusive), that it may leave out; None when it answers for the whole transformer only."""

    def predicted(self, step: int) -> torch.Tensor | None:
        """Return the prediction [N, C] of `step`, or None when it must be computed."""

    def filled(self, step: int, start: torch.Tensor, entered: torch.Tensor) -> torch.Tensor | None:
        """Return the hidden states [S, D] behind the span, or None when its blocks must be computed.

        Args:
            start: hidden states [S, D] before the first block of all.
            entered: those before the span.
        """

    def computed_span(self, step: int, entered: torch.Tensor, left: torch.Tensor) -> None:
        """Take what the span's blocks made of `entered`, both [S, D]; neither changes afterwards."""

    def computed(self, step: int, prediction: torch.Tensor) -> None:
        """Take the prediction [N, C] of a step that was not predicted."""


class TaylorSeries:
    """Extrapolates a tensor that is seen at some steps, by finite differences (Liu et al., TaylorSeer, 2025)."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._terms: list[torch.Tensor] = []
        self._step = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been seen yet."""
        return not self._terms

    def see(self, step: int, value: torch.Tensor) -> None:
        """Take the value at a step later than all before."""
        terms = [value]
        for before in self._terms[: self._order]:
            terms.append((terms[-1] - before) / (step - self._step))
        self._terms, self._step = terms, step

    def at(self, step: int) -> torch.Tensor:
        """Return the value expected at a later step."""
        distance = step - self._step
        total = self._terms[0].clone()
        for power, term in enumerate(self._terms[1:], start=1):
            total.add_(term, alpha=distance**power / math.factorial(power))
        return total


class TaylorSeer:
    """Computes every `skip_interval_steps`-th step after the warm-up; predictions between are extrapolated."""

    span = None

    def __init__(self, params: StepCacheParams) -> None:
        self._params = params
        self._series = TaylorSeries(params.num_derivatives)

    def predicted(self, step: int) -> torch.Tensor | None:
        """See `StepCache.predicted`."""
        since = step - self._params.warmup_steps
        if since < 0 or since % self._params.skip_interval_steps == 0 or self._series.is_empty:
            return None
        return self._series.at(step)

    def filled(self, step: int, start: torch.Tensor, entered: torch.Tensor) -> torch.Tensor | None:
        """See `StepCache.filled`; never asked."""
        return None

    def computed_span(self, step: int, entered: torch.Tensor, left: torch.Tensor) -> None:
        """See `StepCache.computed_span`; never told."""

    def computed(self, step: int, prediction: torch.Tensor) -> None:
        """See `StepCache.computed`."""
        self._series.see(step, prediction)


class FirstBlockCache:
    """Reuses all blocks but the first while that one's change stays near what it was at the last computed step.

    Near is: mean |change - change then| < threshold * mean |change then| (ParaAttention, 2024). What is reused is the
    change that the other blocks made, as it was, or extrapolated from the steps that were computed.
    """

    def __init__(self, params: StepCacheParams, num_blocks: int, *, is_extrapolated: bool) -> None:
        self.span: tuple[int, int] | None = (1, num_blocks)
        self._params = params
        self._series = TaylorSeries(params.num_derivatives if is_extrapolated else 0)
        self._change: torch.Tensor | None = None
        """Of the first block, at the last computed step."""
        self._newest: torch.Tensor | None = None

    def predicted(self, step: int) -> torch.Tensor | None:
        """See `StepCache.predicted`."""
        return None

    def filled(self, step: int, start: torch.Tensor, entered: torch.Tensor) -> torch.Tensor | None:
        """See `StepCache.filled`."""
        self._newest = change = entered - start
        before = self._change
        if before is None or step < self._params.warmup_steps or self._series.is_empty:
            return None
        distance = (change - before).abs().mean() / before.abs().mean()
        if not float(distance) < self._params.residual_diff_threshold:
            return None
        return entered + self._series.at(step)

    def computed_span(self, step: int, entered: torch.Tensor, left: torch.Tensor) -> None:
        """See `StepCache.computed_span`."""
        self._change = self._newest
        self._series.see(step, left - entered)

    def computed(self, step: int, prediction: torch.Tensor) -> None:
        """See `StepCache.computed`; the prediction is not kept."""


class ResidualCache:
    """Leaves the middle blocks out, and adds the change that they last made, on all steps but every n-th.

    The first `start_steps` and the last `end_steps` steps are computed whole; so are the first `start_blocks` and the last
    `end_blocks` blocks of every step.
    """

    def __init__(self, params: StepCacheParams, num_blocks: int, num_steps: int) -> None:
        first, last = params.start_blocks, num_blocks - params.end_blocks
        self.span: tuple[int, int] | None = (first, last) if first < last else None
        self._params = params
        self._num_steps = num_steps
        self._change: torch.Tensor | None = None

    def predicted(self, step: int) -> torch.Tensor | None:
        """See `StepCache.predicted`."""
        return None

    def filled(self, step: int, start: torch.Tensor, entered: torch.Tensor) -> torch.Tensor | None:
        """See `StepCache.filled`."""
        params = self._params
        is_untouched = step < params.start_steps or step >= self._num_steps - params.end_steps
        is_refresh = (step - params.start_steps) % params.skip_interval_steps == 0
        if self._change is None or is_untouched or is_refresh:
            return None
        return entered + self._change

    def computed_span(self, step: int, entered: torch.Tensor, left: torch.Tensor) -> None:
        """See `StepCache.computed_span`."""
        self._change = left - entered

    def computed(self, step: int, prediction: torch.Tensor) -> None:
        """See `StepCache.computed`; the prediction is not kept."""


def make_step_cache(params: StepCacheParams, num_blocks: int, num_steps: int) -> StepCache | None:
    """Return the cache of one prompt of one image, or None for policy None."""
    match params.policy:
        case "None":
            return None
        case "TaylorSeer":
            return TaylorSeer(params)
        case "FBCache":
            return FirstBlockCache(params, num_blocks, is_extrapolated=False)
        case "FBCacheTaylorSeer":
            return FirstBlockCache(params, num_blocks, is_extrapolated=True)
        case "ResidualCache":
            return ResidualCache(params, num_blocks, num_steps)
