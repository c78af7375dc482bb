"""Draws tokens on a GPU by the kernel of xllm-kernels; nothing here waits for the device. Knows nothing of models or of steps."""

from __future__ import annotations

import numpy as np
import torch

from xllm_framework.batch import SamplingRows
from xllm_runtime.platform.uploads import upload

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_VOCABULARY = 524288
WORDS_OF_A_ROW = 4
"""64-bit words of one row's options."""


class OptionsUpload:
    """Memory on host and device for the options of up to `max_rows` rows; one copy brings them over."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._host = torch.zeros(WORDS_OF_A_ROW * max_rows, dtype=torch.int64, device="cpu").pin_memory()
        self._device = torch.zeros(WORDS_OF_A_ROW * max_rows, dtype=torch.int64, device=device)

    def send(self, rows: SamplingRows) -> torch.Tensor:
        """Start the copy of `rows`; return them as `drawn_tokens` takes them. The memory must not be in use by a step."""
        num_words = WORDS_OF_A_ROW * len(rows.temperature)
        pack_options(rows, self._host[:num_words].numpy())
        self._device[:num_words].copy_(self._host[:num_words], non_blocking=True)
        return self._device[:num_words]


def pack_options(rows: SamplingRows, words: np.ndarray) -> None:
    """Lay the options of R rows out in int64 [4 R]: seeds, steps, then temperature, top-p, min-p and top-k of 32 bits each."""
    num_rows = len(rows.temperature)
    words[:num_rows] = rows.seed.view(np.int64)
    words[num_rows : 2 * num_rows] = rows.step
    floats, integers = words[2 * num_rows :].view(np.float32), words[2 * num_rows :].view(np.int32)
    floats[:num_rows] = rows.temperature
    floats[num_rows : 2 * num_rows] = rows.top_p
    floats[2 * num_rows : 3 * num_rows] = rows.min_p
    integers[3 * num_rows :] = rows.top_k


def why_no_draw(logits: torch.Tensor) -> str | None:
    """Return why the kernel cannot draw from `logits` [R, V]; None when it can."""
    if logits.device.type != "cuda":
        return f"it runs on a CUDA GPU, not on {logits.device}"
    if logits.dtype not in DTYPES:
        return f"it takes float32, bfloat16 and float16, not {logits.dtype}"
    if logits.shape[1] % 8 or logits.shape[1] > MAX_VOCABULARY:
        return f"it takes vocabularies that are multiples of 8 and at most {MAX_VOCABULARY}"
    from xllm_kernels import explain

    return next(iter(explain("sample", str(logits.device))), None)


def draw_rows(logits: torch.Tensor, token_ids: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> None:
    """Start drawing from `logits` [R, V] in place of the most probable tokens `token_ids` int32 [R]; see `draw_tokens`."""
    words = np.empty(WORDS_OF_A_ROW * len(logits), np.int64)
    pack_options(rows, words)
    [options] = upload([words], logits.device)
    draw_tokens(logits, token_ids, best, options, token_ids)


def draw_tokens(
    logits: torch.Tensor,
    best_ids: torch.Tensor,
    best: torch.Tensor,
    options: torch.Tensor,
    token_ids: torch.Tensor,
    logprobs: torch.Tensor | None = None,
) -> None:
    """Start drawing `token_ids` int32 [R] from `logits` [R, V] by `options` as `pack_options` lays them out, on the device.

    `best_ids` int32 [R] and `best` float32 [R]: the most probable tokens and their logits.
    """
    from xllm_kernels.cuda.sampling import DrawOptions, sample

    num_rows = len(logits)
    seed, step, rest = options.split((num_rows, num_rows, 2 * num_rows))  # type: ignore[no-untyped-call]
    temperature, top_p, min_p, _ = rest.view(torch.float32).chunk(4)
    top_k = rest.view(torch.int32)[3 * num_rows :]
    sample(
        logits,
        best_ids,
        best,
        DrawOptions(temperature, top_p, min_p, top_k, seed, step),
        token_ids=token_ids,
        logprobs=logprobs,
    )
