"""Notes when the engine loop hands over each step's tokens, for capi.py: in this process, or as the engine process of a C
program. In the latter case libxllm starts this file in place of `xllm_capi.engine`, with the same arguments."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xllm_framework.request.messages import StepOutputs
from xllm_runtime.master.loop import EngineLoop

VARIABLE = "XLLM_BENCHMARK_EMISSIONS"
"""Names the file to which an engine process appends its times when a request has ended."""

MIN_WRITTEN = 50
"""Times of short requests are kept until there are so many: writing costs more than a token."""


def note_emissions(times: array[float], on_end: Callable[[], None] = lambda: None) -> None:
    """From now on, append the monotonic clock's seconds of each step with tokens to `times`, and call `on_end` at ends."""
    make = EngineLoop.__init__

    def make_noting(loop: EngineLoop, scheduler: Any, engine: Any, inbox: Any, emit: Any, **options: Any) -> None:
        def note(outputs: StepOutputs) -> None:
            if outputs.deltas:
                times.append(time.monotonic())
            emit(outputs)
            if outputs.deltas and outputs.deltas[0].finish_reason is not None:
                on_end()

        make(loop, scheduler, engine, inbox, note, **options)

    EngineLoop.__init__ = make_noting  # type: ignore[method-assign]


def engine_wrapper(folder: Path, python: str) -> Path:
    """Write and return what `XLLM_PYTHON` must name for engine processes to note their emissions."""
    wrapper = folder / "python"
    # libxllm calls it as an interpreter: -P -m xllm_capi.engine ARGUMENTS...
    wrapper.write_text(f'#!/bin/sh\nshift 3\nexec {python} -P {__file__} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def main() -> None:
    """Run an engine process."""
    from xllm_capi.engine import main as serve

    times: array[float] = array("d")

    def write() -> None:
        if len(times) < MIN_WRITTEN:
            return
        # Not opened before: an engine process closes what it has inherited.
        with open(os.environ[VARIABLE], "ab", buffering=0) as file:
            file.write(times.tobytes())
        del times[:]

    note_emissions(times, write)
    serve()


if __name__ == "__main__":
    main()
