"""What a step left on the device: logits and most probable tokens, on their way to draws and to the host. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from xllm_framework.batch import ForwardOutput, SamplingRows
from xllm_runtime.executor.cuda_graph_decode import DecodeBuffers
from xllm_runtime.executor.interface import PendingOutput
from xllm_runtime.sampling.device_samples import Choices, DeviceSamples, sample_on_device
from xllm_runtime.sampling.draw_cuda import OptionsUpload, draw_rows, draw_tokens, why_no_draw
from xllm_runtime.sampling.most_probable import is_drawn_as_it_is, most_probable_output, takes_most_probable


class Drawing:
    """Memory of a step that draws tokens: options on their way to the device, results on their way back."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.host_results = torch.zeros(2 * max_rows, dtype=torch.int32, device="cpu").pin_memory()
        """Where steps leave their most probable tokens that have no memory of their own for it."""
        self.options = OptionsUpload(max_rows, device)
        self.logprobs = torch.zeros(max_rows, dtype=torch.float32, device=device)
        self.host_token_ids = torch.zeros(max_rows, dtype=torch.int32, device="cpu").pin_memory()
        self.host_logprobs = torch.zeros(max_rows, dtype=torch.float32, device="cpu").pin_memory()


class DeviceRows:
    """`DecodedRows` in the buffers of the executor, where the next step overwrites them.

    Args:
        host_results: best ids, then best logits as bits, of R rows or more, padded ones included; pinned, complete when the step is.
        newest: returns int32 [R], the last token of each row's sequence, on the device; asked only where samples depend on it.
    """

    def __init__(
        self,
        buffers: DecodeBuffers,
        host_results: torch.Tensor,
        drawing: Drawing,
        num_rows: int,
        newest: Callable[[], torch.Tensor],
    ) -> None:
        self._buffers = buffers
        self._host_results = host_results
        self._drawing = drawing
        self._num_rows = num_rows
        self._newest = newest

    @torch.inference_mode()
    def start(self, rows: SamplingRows) -> PendingOutput | None:
        """See `DecodedRows.start`."""
        if takes_most_probable(rows):
            return DeviceOutput(self._host_results, None, self._num_rows, rows)
        if why_no_draw(self._buffers.logits) is not None:
            return None
        num_rows, drawing = self._num_rows, self._drawing
        logits, token_ids, best = (tensor[:num_rows] for tensor in self._buffers.outputs(len(self._host_results) // 2))
        if not is_drawn_as_it_is(rows):
            return SampledOutput(sample_on_device(Choices(logits, token_ids, best), self._newest(), rows, draw_rows))
        logprobs = drawing.logprobs[:num_rows] if (rows.num_logprobs >= 0).any() else None
        draw_tokens(logits, token_ids, best, drawing.options.send(rows), token_ids, logprobs)
        drawing.host_token_ids[:num_rows].copy_(token_ids, non_blocking=True)
        if logprobs is not None:
            drawing.host_logprobs[:num_rows].copy_(logprobs, non_blocking=True)
        return DeviceOutput(self._host_results, drawing, num_rows, rows)

    @torch.inference_mode()
    def logits(self) -> torch.Tensor:
        """See `DecodedRows.logits`."""
        return self._buffers.logits[: self._num_rows].float()


class SampledOutput:
    """`PendingOutput` of a step whose samples are on their way to the host."""

    is_on_device = True

    def __init__(self, samples: DeviceSamples) -> None:
        self._samples = samples
        self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._end.record()
        self._output: ForwardOutput | None = None

    def wait(self) -> ForwardOutput:
        """See `PendingOutput.wait`."""
        if self._output is None:
            self._end.synchronize()
            self._output = self._samples.output()
        return self._output


class DeviceOutput:
    """`PendingOutput` of a step whose results are on their way to `host_results`, and to `drawing` where tokens are drawn."""

    is_on_device = True

    def __init__(self, host_results: torch.Tensor, drawing: Drawing | None, num_rows: int, rows: SamplingRows) -> None:
        self._host_results = host_results
        self._drawing = drawing
        self._num_rows, self._rows = num_rows, rows
        self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._end.record()
        self._output: ForwardOutput | None = None

    def wait(self) -> ForwardOutput:
        """See `PendingOutput.wait`."""
        if self._output is None:
            self._end.synchronize()
            self._output = self._read()
        return self._output

    def _read(self) -> ForwardOutput:
        num_rows, drawing = self._num_rows, self._drawing
        results = self._host_results.numpy().reshape(2, -1)[:, :num_rows].copy()
        best = results[1].view(np.float32)
        if drawing is None:
            return most_probable_output(results[0], best)
        output = most_probable_output(drawing.host_token_ids[:num_rows].numpy().copy(), best)
        asked = (self._rows.num_logprobs >= 0) & (output.token_ids >= 0)
        if (self._rows.num_logprobs >= 0).any():
            output.logprobs = np.where(asked, drawing.host_logprobs[:num_rows].numpy(), np.float32(0))
        return output
