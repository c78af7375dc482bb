"""Products of a few rows with quantised matrices on a Hopper GPU, at memory speed. Knows nothing of models or checkpoints."""

from __future__ import annotations

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.decode import Epilogue, Workspace
from xllm_kernels.cuda.ops import current_stream
from xllm_kernels.quantised_matrix import QuantisedMatrix

QUANTISED_STREAM_MAX_BATCH: int = _C_cuda.QUANTISED_STREAM_MAX_BATCH
"""Rows that `quantised_stream` takes at most."""


def why_no_quantised_stream(n: int, k: int, epilogue: Epilogue) -> str | None:
    """Why `quantised_stream` does not serve a matrix [n, k]; None when it does."""
    return _C_cuda.why_no_quantised_stream(n, k, epilogue)


def quantised_stream_norms(num_rows: int, k: int) -> bool:
    """Whether `quantised_stream` can normalise x [num_rows, k] on its way; otherwise it must come normalised."""
    return _C_cuda.quantised_stream_norms(num_rows, k)


def quantised_stream(
    x: torch.Tensor,
    matrix: QuantisedMatrix,
    workspace: Workspace,
    *,
    out: torch.Tensor,
    epilogue: Epilogue = Epilogue.NONE,
    norm_weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 0.0,
    configuration: int = 0,
) -> None:
    """out = epilogue(rms_norm(x) matrix^T + bias): x [B, k] with B at most 32, out [B, n]; bfloat16 or float16, sums in float32.

    Without `norm_weight` [k] x is taken as it is, see `quantised_stream_norms`. With `SILU_AND_MUL` the gate's rows come first in the
    matrix, out is [B, n / 2] and there
    is no bias. `configuration` is for measurements; 0 chooses.
    """
    _C_cuda.quantised_stream(
        x,
        matrix.values,
        matrix.kind,
        matrix.row_scales,
        matrix.block_scales,
        matrix.groups,
        norm_weight,
        bias,
        eps,
        epilogue,
        configuration,
        out,
        workspace.memory,
        workspace.counters,
        current_stream(),
    )
