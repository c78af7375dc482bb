"""The best tokens of each row, in one fixed order. Knows nothing of probabilities.

The order is by falling logit and, among equal logits, by rising token id. `torch.topk` promises no order among equals,
and which of them it takes depends on how many are asked for, hence on the neighbours in the batch; logits that were
computed in bfloat16 hold many equals. Here the answer is a function of the row alone.
"""

from __future__ import annotations

import torch

_LAST_ID = 2**32 - 1


def most_probable(logits: torch.Tensor) -> torch.Tensor:
    """Return int64 [R]: the first token with the largest of float32 logits [R, V]; the first NaN where there is one."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))  # vectorised, unlike torch's: ten times as fast
    return logits.argmax(-1)


def best_tokens(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (logits, token ids) [R, width] of the best tokens of `logits` [R, V] in order; `width` is from 1 to V."""
    if logits.device.type != "cpu":
        return best_tokens_by_key(logits, width)
    if 2 * width >= logits.shape[1]:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        return values[:, :width], ids[:, :width]
    values, ids = torch.topk(logits, width + 1)
    goes_on = values[:, width - 1] == values[:, width]
    values, ids = values[:, :width], ids[:, :width].contiguous()
    if goes_on.any():
        rows = goes_on.nonzero().squeeze(1)
        ids[rows] = _with_first_equals(logits.index_select(0, rows), values[rows], ids[rows])
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def best_tokens_by_key(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as `best_tokens` of float32 `logits`, looking at nothing on the host: by keys of which no two are equal.

    A key is the logit's bits, put in order, before the token id, falling.
    """
    bits = (logits + 0.0).view(torch.int32)  # makes one of the two zeros
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    keys = torch.topk((ordered.long() << 32) | (_LAST_ID - tokens), width).values
    ids = _LAST_ID - (keys & _LAST_ID)
    return logits.gather(1, ids), ids


def _with_first_equals(logits: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return `ids` with the tokens that equal a row's last value replaced by the first such tokens of the row."""
    num_rows, width = values.shape
    last = values[:, -1:]
    num_equal = (values == last).sum(-1)
    rows, tokens = (logits == last).nonzero(as_tuple=True)
    occurrences = torch.bincount(rows, minlength=num_rows)
    rank = torch.arange(len(rows), device=rows.device) - (occurrences.cumsum(0) - occurrences)[rows]
    is_taken = rank < num_equal[rows]
    rows, tokens, rank = rows[is_taken], tokens[is_taken], rank[is_taken]
    ids[rows, width - num_equal[rows] + rank] = tokens
    return ids
