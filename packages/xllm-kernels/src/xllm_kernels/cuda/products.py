"""Matrix products by whichever algorithm of the library was the fastest so far. Knows nothing of layers."""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from xllm_kernels.cuda.cublaslt import Algorithm, LibraryError, Product, why_no_product

SAMPLES = 5
"""Timings of each algorithm before one is chosen."""
LEAST_GAIN = 0.04
"""Share of the first choice's time that another must save. In turn all meet the same clock; at the limit of power one that was 3 % faster
so was 4.6 % slower when it ran alone."""

logger = logging.getLogger(__name__)


class Trial:
    """Which of some ways is fastest: each is tried in turn until all have `SAMPLES` timings. The first is the one to beat."""

    def __init__(self, num_ways: int) -> None:
        self.chosen: int | None = 0 if num_ways == 1 else None
        """The fastest, once it is known."""
        self._times: list[list[float]] = [[] for _ in range(num_ways)]
        self._turn = 0

    def next(self) -> int:
        """Return the way to try."""
        way, self._turn = self._turn, (self._turn + 1) % len(self._times)
        return way

    def record(self, way: int, time: float) -> None:
        """Note what `way` took, in any unit that is the same for all."""
        if self.chosen is not None:
            return
        self._times[way].append(time)
        if min(len(times) for times in self._times) >= SAMPLES:
            took = [statistics.median(times) for times in self._times]
            best = took.index(min(took))
            self.chosen = best if took[best] < took[0] * (1 - LEAST_GAIN) else 0


@dataclass(frozen=True, slots=True)
class Timing:
    """A call whose end the device may not have reached yet."""

    way: int
    num_rows: int
    begin: torch.cuda.Event
    end: torch.cuda.Event


@dataclass(slots=True)
class Kind:
    """All products of W of one shape and type with about as many rows."""

    product: Product
    algorithms: Sequence[Algorithm]
    trial: Trial
    _under_way: deque[Timing] = field(default_factory=deque)

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[M, K] times W [N, K] -> [M, N]. Raises `LibraryError` where an algorithm does not serve; nothing was launched then."""
        if self.trial.chosen is None and not torch.cuda.is_current_stream_capturing():
            self._read_timings()
            if self.trial.chosen is None:
                return self._timed(x, weight)
        return self.product.multiply(x, weight, self.algorithms[self.trial.chosen or 0])

    def _timed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        way = self.trial.next()
        # torch leaves the making of events without types.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        product = self.product.multiply(x, weight, self.algorithms[way])
        end.record()
        self._under_way.append(Timing(way, len(x), begin, end))
        return product

    def _read_timings(self) -> None:
        """Note those that have ended; nothing is waited for."""
        while self._under_way and self._under_way[0].end.query():  # type: ignore[no-untyped-call]  # torch leaves it without types
            timing = self._under_way.popleft()
            self.trial.record(timing.way, timing.begin.elapsed_time(timing.end) / timing.num_rows)
        if self.trial.chosen is not None:
            self._under_way.clear()


class MeasuredProducts:
    """x W^T on a GPU, by the fastest of cuBLASLt's algorithms.

    Its first choice is not always that. So the first calls of each kind (W's shape, type, rows up to the next power of two) try all in
    turn, in the midst of a step; events time them, read when they have passed. All sum in the same order, so a choice changes no bit of
    a result, and nobody need be told when it falls.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[torch.device, torch.dtype, int, int, int], Kind | None] = {}
        self._lock = threading.Lock()

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[M, K] times W [N, K] -> [M, N]."""
        if why_no_product(x, weight) is not None:
            return F.linear(x, weight)
        n, k = weight.shape
        key = (x.device, x.dtype, len(x).bit_length(), n, k)
        with self._lock:
            if key not in self._kinds:
                self._kinds[key] = new_kind(x, weight)
            kind = self._kinds[key]
            if kind is None:
                return F.linear(x, weight)
            try:
                return kind.multiply(x, weight)
            except LibraryError as error:
                logger.warning("Products with %d x %d are left to torch: %s.", n, k, error)
                self._kinds[key] = None
        return F.linear(x, weight)

    def choices(self) -> list[int | None]:
        """Return for each kind of product met so far which of the library's choices it takes; None while that is open, or torch's."""
        with self._lock:
            return [None if kind is None else kind.trial.chosen for kind in self._kinds.values()]


def new_kind(x: torch.Tensor, weight: torch.Tensor) -> Kind | None:
    """Return the kind that `x` belongs to; None where the library cannot be had or does not serve it."""
    n, k = weight.shape
    try:
        product = Product(n, k, x.dtype, x.device)
        algorithms = product.algorithms(len(x))
    except LibraryError as error:
        logger.warning("Products with %d x %d are left to torch: %s.", n, k, error)
        return None
    return Kind(product, algorithms, Trial(len(algorithms)))
