"""Records what the engine side's loop does, from one message to another, into a file. Knows nothing of steps.

With torch in the process it is torch's profiler, whose trace Perfetto and chrome://tracing show: operators, and kernels where
there is a CUDA device. Without (the C++ decoder imports no torch) it is Python's own, whose file `python -m pstats` reads: the
loop's functions, in which a native step is one call. Worker threads of other ranks are not seen.
"""

from __future__ import annotations

import cProfile
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from xllm_framework.request.messages import ProfileState


class Recording(Protocol):
    """A profile that is being recorded, by and on one thread."""

    kind: str
    suffix: str

    def stop(self, path: Path) -> None:
        """End it and write it to `path`."""


class StepProfiler:
    """Used by the loop's thread.

    Args:
        folder: where files go; empty refuses to record.
    """

    def __init__(self, folder: str, begin: Callable[[], Recording] | None = None) -> None:
        self._folder = folder
        self._begin = begin or _begin
        self._recording: Recording | None = None
        self.state = ProfileState()
        """After the latest `start` or `stop`."""

    def start(self) -> None:
        """Begin to record; `state` says whether it does."""
        if not self._folder:
            self._set(error="Profiles are off: start the server with --profile-dir.")
        elif self._recording is not None:
            self._set(kind=self._recording.kind, error="A profile is being recorded already.")
        else:
            self._recording = self._begin()
            self._set(kind=self._recording.kind)

    def stop(self) -> None:
        """End and write the file; `state` says which."""
        recording, self._recording = self._recording, None
        if recording is None:
            self._set(error="No profile is being recorded.")
            return
        path = Path(self._folder) / time.strftime(f"xllm-%Y%m%d-%H%M%S-{self.state.number}.{recording.suffix}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            recording.stop(path)
        except OSError as error:
            self._set(kind=recording.kind, error=f"The profile cannot be written to {path}: {error}.")
        else:
            self._set(kind=recording.kind, path=str(path))

    def _set(self, *, kind: str = "", path: str = "", error: str = "") -> None:
        self.state = ProfileState(self.state.number + 1, self._recording is not None, kind, path, error)


class PythonRecording:
    """Python's profiler on this thread."""

    kind = "python"
    suffix = "pstats"

    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self._profile.enable()

    def stop(self, path: Path) -> None:
        """See `Recording.stop`."""
        self._profile.disable()
        self._profile.dump_stats(path)


class TorchRecording:
    """torch's profiler, with CUDA's kernels where there is a device."""

    kind = "torch"
    suffix = "json.gz"

    def __init__(self) -> None:
        import torch.profiler

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()

    def stop(self, path: Path) -> None:
        """See `Recording.stop`."""
        self._profile.stop()
        self._profile.export_chrome_trace(str(path))


def _begin() -> Recording:
    return TorchRecording() if "torch" in sys.modules else PythonRecording()
