"""The machine under a benchmark: who else computes on it, how fast it reads memory. Knows nothing of servers.

Source: proc(5). A share counts all cores: 0.5 of two cores is one whole core. Where other work runs inside a virtual
machine's neighbours, `steal` shows it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
QUIET_SHARE = 0.03
"""Of the machine, at most, for it to count as quiet."""
QUIET_WINDOW_S = 1.0
READ_BYTES = 2**28
READ_TRIALS = 5


def process_tree(pid: int) -> list[int]:
    """Return `pid` and its descendants that live."""
    found, pending = [], [pid]
    while pending:
        parent = pending.pop()
        found.append(parent)
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pending += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def cpu_ticks(pids: Iterable[int]) -> int:
    """Return the ticks that processes have computed, those of children they have waited for included."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total


def peak_bytes(pid: int) -> int:
    """Return the largest resident memory that a process tree has had, process by process."""
    total = 0
    for member in process_tree(pid):
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return total


@dataclass(slots=True)
class Disturbance:
    """What others computed between construction and `share`: everything but this process and the trees of `own`."""

    own: list[int]
    _busy: int = 0
    _own: int = 0
    _start_s: float = 0.0

    def __post_init__(self) -> None:
        self._busy, self._own, self._start_s = _busy_ticks(), self._own_ticks(), time.perf_counter()

    def share(self) -> float:
        """Return others' share of the machine since construction."""
        ticks = (_busy_ticks() - self._busy) - (self._own_ticks() - self._own)
        available = (time.perf_counter() - self._start_s) * TICKS_A_SECOND * (os.cpu_count() or 1)
        return max(ticks / available, 0.0)

    def _own_ticks(self) -> int:
        return cpu_ticks({os.getpid(), *(pid for root in self.own for pid in process_tree(root))})


def wait_until_quiet(own: list[int], timeout_s: float) -> bool:
    """Wait until others leave the machine alone for a moment; False when they have not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        disturbance = Disturbance(own)
        time.sleep(QUIET_WINDOW_S)
        if disturbance.share() <= QUIET_SHARE:
            return True
        if time.monotonic() > deadline:
            return False


def undisturbed(run: Callable[[], float], own: list[int], *, timeout_s: float, max_runs: int = 4) -> tuple[float, bool]:
    """Return what `run` measured while the machine was quiet, and whether it was; a disturbed run is repeated.

    With a `timeout_s` of 0 the first run counts, whatever others do.
    """
    max_runs = max_runs if timeout_s > 0 else 1
    for attempt in range(max_runs):
        is_quiet = wait_until_quiet(own, timeout_s)
        disturbance = Disturbance(own)
        value = run()
        share = disturbance.share()
        if is_quiet and share <= QUIET_SHARE:
            return value, True
        print(
            f"  others used {share:.0%} of the machine (run {attempt + 1} of {max_runs})", file=sys.stderr, flush=True
        )
    return value, False


def read_bandwidth(threads: int) -> float:
    """Return the bytes a second that `threads` threads read from memory together, the best of several trials."""
    arrays = [np.ones(READ_BYTES, np.uint8) for _ in range(threads)]
    best = 0.0
    for view in (np.uint8, np.float32, np.uint64):
        for _ in range(READ_TRIALS):
            workers = [threading.Thread(target=np.maximum.reduce, args=(array.view(view),)) for array in arrays]
            start_s = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            best = max(best, threads * READ_BYTES / (time.perf_counter() - start_s))
    return best


def drop_from_page_cache(path: Path) -> None:
    """Ask the system to forget a file's pages, as after a restart; a request, not an order."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _busy_ticks() -> int:
    """Return the ticks that all cores have computed, or lost to neighbours, since the start of the system."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + irq + softirq + steal
