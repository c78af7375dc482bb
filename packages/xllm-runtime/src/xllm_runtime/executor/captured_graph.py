"""Captures what is launched on a CUDA stream as a graph, and leaves the stream fit for use where that fails. Knows nothing of models."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class GraphMemory:
    """What graphs of one device share: a pool of memory, since they never run at once, and the stream that they are captured on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.capture_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Address:
    """Where a tensor lies, without keeping its memory from others: later pieces of a graph may have what earlier ones are done with."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.element_size() != 2:
            raise ValueError(f"a graph's tensors must have elements of two bytes, not {tensor.dtype}")
        self._dtype = tensor.dtype
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": tuple(tensor.shape),
            "strides": tuple(2 * stride for stride in tensor.stride()),
            "typestr": "<i2",
            "data": (tensor.data_ptr(), False),
        }

    def tensor(self) -> torch.Tensor:
        """Return what lies there, as it was at the address when a graph has just run."""
        return torch.as_tensor(self, device="cuda").view(self._dtype)


class GraphCapture:
    """A capture in one or more pieces, on the current stream; see `capturing`."""

    def __init__(self, memory: GraphMemory) -> None:
        self._memory = memory
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self) -> None:
        """Begin a piece."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._memory.pool, capture_error_mode="thread_local")
        self._graph = graph

    def end(self) -> torch.cuda.CUDAGraph:
        """End the piece, and return it. Raises RuntimeError where it held what cannot be captured."""
        if self._graph is None:
            raise RuntimeError("no piece was begun")
        graph, self._graph = self._graph, None
        graph.capture_end()
        return graph

    def abandon(self) -> None:
        """End what is under way and drop it."""
        if self._graph is None:
            return
        try:
            self.end()
        except RuntimeError:  # what made the caller give up
            return


@contextmanager
def capturing(memory: GraphMemory) -> Iterator[GraphCapture]:
    """Make the stream for captures current. No garbage is collected meanwhile: an older graph that goes then would end the process."""
    capture, was_enabled = GraphCapture(memory), gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(memory.capture_stream):
            try:
                yield capture
            finally:
                capture.abandon()
    finally:
        if was_enabled:
            gc.enable()


def capture_graph(memory: GraphMemory, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return a graph of what `compute` launches; nothing runs. Raises RuntimeError where that cannot be captured."""
    with capturing(memory) as capture:
        capture.begin()
        compute()
        return capture.end()
