"""Log-probabilities of given tokens and of the best tokens beside them. Knows nothing of how tokens were chosen.

They are those of the model itself: the log-softmax of its logits before penalties, biases, temperature and filters, which
is what OpenAI's clients and vLLM's users expect, and what lets a prompt's and an answer's be added up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from xllm_runtime.sampling.logprob_rows import LogprobRows
from xllm_runtime.sampling.ranking import best_tokens
from xllm_runtime.sampling.slices import row_slices


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobRows:
    """Return the log-probabilities of int64 `token_ids` [T], and the `num_top` best, under float32 `logits` [T, V].

    At most V best tokens are returned. A row's result does not depend on the other rows.
    """
    slices = row_slices(*logits.shape)
    return LogprobRows.concatenate([_token_logprobs(logits[rows], token_ids[rows], num_top) for rows in slices])


def prompt_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    token_ids: torch.Tensor,
    num_top: int,
    vocab_size: int,
) -> LogprobRows:
    """Return the same for the tokens that follow `hidden` [T, H]; logits exist for a slice of rows at a time.

    `compute_logits` takes rows of `hidden` to float32 [rows, `vocab_size`]; T is 1 or more.
    """
    slices = row_slices(len(token_ids), vocab_size)
    return LogprobRows.concatenate(
        [_token_logprobs(compute_logits(hidden[rows]), token_ids[rows], num_top) for rows in slices]
    )


def _token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobRows:
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    top, ids = best_tokens(logprobs, min(num_top, logits.shape[1])) if num_top else (logprobs[:, :0], logprobs[:, :0])
    return LogprobRows(chosen.cpu().numpy(), ids.to(torch.int32).cpu().numpy(), top.cpu().numpy())
