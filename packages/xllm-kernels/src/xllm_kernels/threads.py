"""Size of the one thread pool that all native CPU code shares. Knows nothing of the work that runs on it."""

from __future__ import annotations

from xllm_kernels import _C


def get_num_threads() -> int:
    """Threads that compute one call, the caller included; the usable physical cores until set."""
    return _C.get_num_threads()


def set_num_threads(num_threads: int, *, pin: bool = False) -> None:
    """Resize the pool; with `pin`, each worker stays on its own core (the caller stays where it is).

    Results do not depend on it. Waits for a running call of another thread. Raises ValueError outside [1, 1024].
    """
    _C.set_num_threads(num_threads, pin)
