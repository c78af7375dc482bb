"""What a decode step is made of: products of a few rows with large weights, attention of single tokens, the best token.

Knows nothing of models. A `Workspace` must not serve two streams at once.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.ops import current_stream

LINEAR_STREAM_MAX_BATCH: int = _C_cuda.LINEAR_STREAM_MAX_BATCH
"""Rows that `linear_stream` takes at most."""
LINEAR_BATCH_MAX_BATCH: int = _C_cuda.LINEAR_BATCH_MAX_BATCH
"""Rows that `linear_batch` takes at most, but for gates."""
LINEAR_BATCH_MAX_GATED: int = _C_cuda.LINEAR_BATCH_MAX_GATED
"""Rows that it takes at most with `SILU_AND_MUL`."""
STREAMED_ROWS, BATCHED_ROWS = 8, LINEAR_BATCH_MAX_BATCH
"""Up to which `linear_stream` is the faster one, and `linear_batch` after it; measured, see the comments of the kernels."""
WORKSPACE_FLOATS = 4 * 2**20
WORKSPACE_COUNTERS = 2**16


class Epilogue(IntEnum):
    """What `linear_stream` does with a product."""

    NONE = 0
    ADD_RESIDUAL = 1
    """Adds it to what `out` holds."""
    SILU_AND_MUL = 2
    """Takes the first half of the outputs as gates of the second."""


class UnfinishedNorm:
    """RMS norms of up to `BATCHED_ROWS` rows [B, H] between two calls of `linear_batch`: one leaves them, the next ones finish them."""

    def __init__(self, rows: torch.Tensor) -> None:
        """Room for norms of `rows`, H a multiple of 64."""
        self.x = torch.empty_like(rows)
        """[B, H], the rows times the norm's weight; in float16 a 64th of that, so that large numbers fit."""
        self.squares = torch.empty(rows.shape[1] // 64, BATCHED_ROWS, dtype=torch.float32, device=rows.device)
        """Sums of squares of each row's pieces of 64 numbers."""


class Workspace:
    """Scratch memory of the kernels here on one device."""

    def __init__(self, device: torch.device) -> None:
        self.memory = torch.empty(WORKSPACE_FLOATS, dtype=torch.float32, device=device)
        self.counters = torch.zeros(WORKSPACE_COUNTERS, dtype=torch.int32, device=device)
        self.barrier = torch.zeros(1, dtype=torch.int32, device=device)
        """Where the blocks of a kernel meet."""


@cache
def shared_workspace(device: torch.device) -> Workspace:
    """The one workspace of whoever computes on one stream of `device`."""
    return Workspace(device)


def why_no_linear_stream(n: int, k: int, epilogue: Epilogue) -> str | None:
    """Why `linear_stream` does not serve a weight [n, k]; None when it does."""
    return _C_cuda.why_no_linear_stream(n, k, epilogue)


def why_no_decode_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> str | None:
    """Why `decode_attention` does not serve these sizes; None when it does."""
    return _C_cuda.why_no_decode_attention(num_heads, num_kv_heads, head_dim, block_size)


def linear_stream(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out: torch.Tensor,
    epilogue: Epilogue,
    norm_weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """out = epilogue(rms_norm(x) weight^T + bias), all bfloat16 or all float16: x [B, k] with B at most 8, weight [n, k],
    out [B, n].

    With `SILU_AND_MUL` the gate's rows come first in `weight`, out is [B, n / 2] and there is no bias. `ADD_RESIDUAL` takes no
    norm, the others need one.
    """
    _C_cuda.linear_stream(
        x,
        weight,
        norm_weight,
        bias,
        eps,
        epilogue,
        out,
        current_stream(),
    )


def why_no_linear_batch(n: int, k: int, num_rows: int = 1, epilogue: Epilogue = Epilogue.NONE) -> str | None:
    """Why `linear_batch` does not serve `num_rows` rows and a weight [n, k]; None when it does."""
    return _C_cuda.why_no_linear_batch(n, k, num_rows, epilogue)


def linear_batch(
    x: torch.Tensor | UnfinishedNorm,
    weight: torch.Tensor,
    *,
    out: torch.Tensor,
    epilogue: Epilogue,
    bias: torch.Tensor | None = None,
    eps: float = 0.0,
    next_norm: tuple[torch.Tensor, UnfinishedNorm] | None = None,
) -> None:
    """out = epilogue(x weight^T + bias), all bfloat16 or all float16: x [B, k] with B at most 32, weight [n, k], out [B, n] ([B, n / 2]
    gated).

    As `linear_stream`, by tensor cores that read both from shared memory: for rows so many that its way is bound by instructions. An
    unfinished norm as x is finished with `eps`; `next_norm`, (weight [n], where), is left with `ADD_RESIDUAL`. With `SILU_AND_MUL`, B
    is at most 128; from 33 on, n must be a multiple of 192 and x has been normed before.
    """
    rows, squares = (x.x, x.squares) if isinstance(x, UnfinishedNorm) else (x, None)
    norm_weight, left = (None, None) if next_norm is None else next_norm
    _C_cuda.linear_batch(
        rows,
        weight,
        bias,
        epilogue,
        squares,
        eps,
        norm_weight,
        None if left is None else left.x,
        None if left is None else left.squares,
        out,
        current_stream(),
    )


def most_rows(n: int, k: int, epilogue: Epilogue) -> int:
    """How many rows of a step `linear_stream`, then `linear_batch` take for a weight [n, k]; 0 for none."""
    if why_no_linear_stream(n, k, epilogue) is not None:
        return 0
    return STREAMED_ROWS if why_no_linear_batch(n, k) is not None else BATCHED_ROWS


def most_gated_rows(n: int, k: int) -> int:
    """How many rows, of more than `BATCHED_ROWS`, `linear_batch` gates faster than cuBLAS and a kernel for gates do; 0 for none."""
    if why_no_linear_batch(n, k, LINEAR_BATCH_MAX_GATED, Epilogue.SILU_AND_MUL) is not None:
        return 0
    return LINEAR_BATCH_MAX_GATED if _C_cuda.tall_tiles_fill_the_device(n) else 0


def decode_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    workspace: Workspace,
    *,
    out: torch.Tensor,
    scale: float,
    max_seq_len: int,
    cos_sin_cache: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    splits: int = 0,
    configuration: int = 0,
) -> None:
    """Attend the newest token of B sequences, whose KV is written to the cache first; all bfloat16 or all float16.

    query [B, Hq, D], key and value [B, Hk, D], rows may be strided; kv_cache (K, V) each [num_blocks, block_size, Hk, D];
    block_tables int32 [B, W]; seq_lens int32 [B], tokens with the new one (0: an unused row, nothing is read or written);
    out [B, Hq, D]. With `cos_sin_cache`, query and key are normalised (where norms are given) and rotated first, without they are
    taken as they are; `positions` (int32 [B]) are rows of that table, without them tokens stand where they are in their sequences.
    `max_seq_len` bounds seq_lens; only speed depends on it, and on `splits` and `configuration` (1 for one stage of tiles, 2 for a ring of
    two, 3 of three; 0 chooses).
    """
    _C_cuda.decode_attention(
        query,
        key,
        value,
        q_norm,
        k_norm,
        cos_sin_cache,
        *kv_cache,
        block_tables,
        seq_lens,
        positions,
        scale,
        eps,
        max_seq_len,
        splits,
        configuration,
        out,
        workspace.memory,
        workspace.counters,
        current_stream(),
    )


def argmax(logits: torch.Tensor, workspace: Workspace, *, token_ids: torch.Tensor, best: torch.Tensor) -> None:
    """Set token_ids (int32 [B]) to the first largest of logits (16 bits, [B, V]) and best (float32 [B]) to it; NaN is largest."""
    _C_cuda.argmax(logits, token_ids, best, workspace.memory, workspace.counters, current_stream())
