"""Puts the tokens of the step before into the input of a step that was built without knowing them.

A placeholder is -1 - row, `row` being a sampled row of the step before on the same rank. Knows nothing of sequences.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.forward_input import ForwardInput
from xllm_framework.errors import XLLMError


def replace_placeholders(forward_input: ForwardInput, drawn: npt.NDArray[np.int32] | None) -> None:
    """Replace every placeholder of `forward_input` by the token of `drawn` (int32 [R], of the step before), in place.

    A row of `drawn` that failed holds -1; its successor computes token 0, which nobody will look at.

    Raises:
        XLLMError: there is a placeholder, and `drawn` is None because the step before failed.
    """
    _replace(forward_input.token_ids, drawn)
    for _row, _prompt, output in forward_input.sampling.penalised:
        _replace(output, drawn)


def _replace(token_ids: npt.NDArray[np.int32], drawn: npt.NDArray[np.int32] | None) -> None:
    is_placeholder = token_ids < 0
    if not is_placeholder.any():
        return
    if drawn is None:
        raise XLLMError("The step before failed, so that its tokens are not known.")
    token_ids[is_placeholder] = np.maximum(drawn[-1 - token_ids[is_placeholder]], 0)
