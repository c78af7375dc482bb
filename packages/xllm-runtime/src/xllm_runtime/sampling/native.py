"""The sampler on arrays with its two costly parts, drawing and log-probabilities, in xllm-kernels. Imports no torch.

`sampling.arrays` is the truth: the same options and random numbers, so the same tokens but where a random number falls
within rounding of a border between two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardOutput, SamplingRows
from xllm_kernels import native
from xllm_runtime.sampling.arrays import sampler
from xllm_runtime.sampling.logprob_rows import LogprobRows
from xllm_runtime.sampling.philox import uniforms


def sample(logits: sampler.Logits, rows: SamplingRows) -> ForwardOutput:
    """As `sampling.arrays.sampler.sample`."""
    return sampler.sample(logits, rows, draw_rows, token_logprobs)


def draw_rows(
    logits: sampler.Logits, drawn: npt.NDArray[np.intp], best: sampler.Logits, rows: SamplingRows
) -> npt.NDArray[np.int32]:
    """As `sampling.arrays.draw.draw_rows`, but leaves the logits as they are."""
    vocab_size = logits.shape[1]
    top_k = rows.top_k[drawn].astype(np.int64)
    return native.draw_tokens(
        logits,
        drawn.astype(np.int64),
        best[drawn],
        temperature=rows.temperature[drawn],
        top_k=np.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k),
        top_p=rows.top_p[drawn].tolist(),
        min_p=rows.min_p[drawn],
        uniform=uniforms(rows.seed[drawn], rows.step[drawn]).tolist(),
    )


def token_logprobs(logits: sampler.Logits, token_ids: npt.NDArray[np.int32], num_top: int) -> LogprobRows:
    """As `sampling.arrays.logprobs.token_logprobs`."""
    found = native.token_logprobs(np.ascontiguousarray(logits), token_ids, min(num_top, logits.shape[1]))
    return LogprobRows(*found)
