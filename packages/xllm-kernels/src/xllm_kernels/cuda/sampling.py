"""Tokens drawn on a GPU, which need not leave it before the next step takes them. Knows nothing of requests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.ops import current_stream

MAX_VOCABULARY = 524288


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """What R rows ask for; each [R], on the GPU."""

    temperature: torch.Tensor
    """float32; 0 takes the most probable token."""
    top_p: torch.Tensor
    """float32; 1 is off."""
    min_p: torch.Tensor
    """float32; 0 is off."""
    top_k: torch.Tensor
    """int32; 0 is off."""
    seed: torch.Tensor
    """int64, the bits of an unsigned number."""
    step: torch.Tensor
    """int64"""


def sample(
    logits: torch.Tensor,
    best_ids: torch.Tensor,
    best: torch.Tensor,
    options: DrawOptions,
    *,
    token_ids: torch.Tensor,
    logprobs: torch.Tensor | None = None,
) -> None:
    """Set token_ids (int32 [R], may be `best_ids`) to a token a row of logits [R, V], bfloat16, float16 or float32; V a multiple of 8.

    `best_ids` int32 [R] and `best` float32 [R] are the most probable tokens and their logits. Temperature, top-k, top-p over what
    top-k left, min-p; the random number is Philox4x32-10 of (seed, step). Rows whose `best` is not finite get -1. `logprobs`
    (float32 [R]) gets the tokens' log-probabilities under the logits as they are. No row depends on another, to the bit.
    """
    _C_cuda.sample(
        logits,
        best_ids,
        best,
        options.temperature,
        options.top_p,
        options.min_p,
        options.top_k,
        options.seed,
        options.step,
        token_ids,
        logprobs,
        current_stream(),
    )


def replace_placeholders(token_ids: torch.Tensor, previous: torch.Tensor) -> None:
    """Replace every negative -1 - i of token_ids (int32 [T]) by previous[i] (int32 [P]), or by 0 where that is negative, too."""
    _C_cuda.replace_placeholders(token_ids, previous, current_stream())
