"""Walks every CUDA kernel through small calls under NVIDIA's compute-sanitizer: memory, races, barriers, memory that nobody set.

    python benchmarks/sanitize_gpu.py [--tools memcheck,racecheck,synccheck,initcheck] [--seconds 150] [--processes 8] [--only NAME,...]

Needs a Hopper GPU, the kernels built, and compute-sanitizer and nvcc of the CUDA toolkit, found by PATH, beside each other, or by
`--sanitizer` and `--nvcc`. Before a tool's silence is believed it must find an error that `planted_errors.cu` makes for it.
`gpu_walk.py` says what is walked through, and `--kernels` what is not; racecheck's walk, twenty times as slow as the others', is shared
out among all processes. `--shard I/N` of `--walk` takes every N-th part from the I-th. Ends with a line for each tool, also where the time
is over or the script is told to stop, and with 0 only where every tool walked everything and found the planted error alone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SHARED_OUT = "racecheck"
FOUND = 9
"""Status of a run in which a tool found an error."""
ENDING_S = 8
"""What a tool may take after its walk."""
OUR_KERNELS = ("--kernel-name", "kernel_substring=xllm")
PLANTED_ERRORS = Path(__file__).with_name("planted_errors.cu")
PLANTED_THREADS = 64
"""Threads of a planted kernel, and the integers that its memory holds."""


def find_program(name: str, beside: Iterable[Path] = ()) -> Path | None:
    """Return the program of the CUDA toolkit: by PATH, in the folders `beside`, or where toolkits are installed."""
    on_path = shutil.which(name)
    roots = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), *sorted(Path("/opt/nvidia").glob("*"))]
    places = [*beside, *(root / "bin" for root in roots), *(root / "compute-sanitizer" for root in roots), *roots]
    found = [place / name for place in places if (place / name).is_file()]
    return Path(on_path) if on_path else next(iter(found), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one process under a tool came to."""

    tool: str
    shard: str
    """I/N, or empty for the planted error."""
    status: int
    """Of the process: 0, `FOUND`, what the walk returned, or below 0 where it was ended."""
    output: str

    def parts(self, begin: str) -> list[str]:
        """Return the parts that such lines of the walk name: "to walk", "walked" or "failed"."""
        return re.findall(rf"^{begin}: (\w+ in \w+)", self.output, re.MULTILINE)

    @property
    def is_empty(self) -> bool:
        """Whether the walk says that no part fell to this shard. It starts nothing then, which the tools take for a failure."""
        return re.search(r"^no part to walk$", self.output, re.MULTILINE) is not None


class Watch:
    """Runs this script under the tools, and ends all of it once the time is over."""

    def __init__(self, sanitizer: Path, seconds: float) -> None:
        self._sanitizer, self._end = sanitizer, time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self._end - time.monotonic()

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """Let the time be over now."""
        self._end = time.monotonic()

    def run(self, tool: str, arguments: list[str], shard: str = "") -> Outcome:
        """Run this script with `arguments` under `tool`; nothing is started any more once the time is over."""
        # Memory is only known to be set where every kernel that sets it is watched, torch's too.
        watched = () if tool == "initcheck" else OUR_KERNELS
        command = [str(self._sanitizer), "--tool", tool, *watched, "--target-processes", "all"]
        command += ["--show-backtrace", "device", "--print-limit", "20", "--error-exitcode", str(FOUND)]
        command += [sys.executable, __file__, *arguments]
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor an allocation of its own
        if self.left_s() <= 0:
            return Outcome(tool, shard, -signal.SIGTERM, "")
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
            while process.poll() is None and self.left_s() > 0:
                time.sleep(0.1)
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            output.seek(0)
            return Outcome(tool, shard, status, output.read())


def report(outcome: Outcome) -> Outcome:
    """Print what a process printed."""
    title = f"shard {outcome.shard} of the walk" if outcome.shard else "a planted error"
    print(f"== {outcome.tool}, {title}: status {outcome.status}\n{outcome.output}", end="", flush=True)
    return outcome


def summary(outcomes: list[Outcome]) -> tuple[bool, str]:
    """Return whether one tool found its planted error, walked everything and found nothing else, and a line that says so."""
    planted, shards = [o for o in outcomes if not o.shard], [o for o in outcomes if o.shard]
    asked = [part for shard in shards for part in shard.parts("to walk")]
    walked = [part for shard in shards for part in shard.parts("walked")]
    troubles = []
    if any(o.status != FOUND for o in planted):
        troubles.append("did not find the error planted for it, so that its silence means nothing")
    if found := [o.shard for o in shards if o.status == FOUND]:
        troubles.append(f"found errors in shards {', '.join(found)}")
    if failed := [part for shard in shards for part in shard.parts("failed")]:
        troubles.append(f"failed: {', '.join(failed)}")
    if missing := [part for part in asked if part not in {*walked, *failed}]:
        troubles.append(f"not walked: {', '.join(missing)}")
    if ended := [f"{o.shard} ({o.status})" for o in shards if o.status not in (0, FOUND) and not o.is_empty]:
        troubles.append(f"not done: shards {', '.join(ended)}")
    if not asked:
        troubles.append("nothing to walk")
    count = f"{len(walked)} of {len(asked)} parts of the walk in {len(shards)} shards"
    return (
        not troubles,
        f"{outcomes[0].tool}: {'; '.join([count, *troubles]) if troubles else f'{count}, nothing found'}",
    )


def check(options: argparse.Namespace, watch: Watch, planted: Path) -> bool:
    """Run every tool on its planted error and its walk, side by side; print a line for each; return whether all is well."""
    tools = sorted(options.tools.split(","), key=lambda tool: tool != SHARED_OUT)
    tasks: list[tuple[str, list[str], str]] = []
    for tool in tools:
        count = options.processes if tool == SHARED_OUT else 1
        walk = ["--walk", "--dtypes", options.dtypes, "--only", options.only, "--shard"]
        tasks += [(tool, [*walk, f"{i}/{count}"], f"{i}/{count}") for i in range(1, count + 1)]
    tasks += [(tool, ["--planted", tool, str(planted)], "") for tool in tools]

    def run(task: tuple[str, list[str], str]) -> Outcome:
        tool, arguments, shard = task
        return watch.run(tool, [*arguments, "--seconds", str(watch.left_s() - ENDING_S)], shard)

    with ThreadPoolExecutor(options.processes) as pool:
        outcomes = [report(outcome) for outcome in pool.map(run, tasks)]
    verdicts = [summary([outcome for outcome in outcomes if outcome.tool == tool]) for tool in tools]
    for _, line in verdicts:
        print(line, flush=True)
    return all(is_clean for is_clean, _ in verdicts)


def run_planted(tool: str, module_file: str) -> int:
    """Start the kernel with the error that `tool` is for. By the driver alone: torch takes seconds to load."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    context, module, kernel, memory = (ctypes.c_void_p() for _ in range(4))
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoad", ctypes.byref(module), module_file.encode())
    call("cuModuleGetFunction", ctypes.byref(kernel), module, f"xllm_planted_{tool}".encode())
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * PLANTED_THREADS))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    call("cuLaunchKernel", kernel, 1, 1, 1, PLANTED_THREADS, 1, 1, 0, None, parameters, None)
    driver.cuCtxSynchronize()  # an error here is what was planted
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS), help="what to look for")
    parser.add_argument("--seconds", type=float, default=150, help="after how many to stop")
    parser.add_argument("--processes", type=int, default=8, help="how many run side by side")
    parser.add_argument("--only", default="", help="the parts of the walk to take, all if empty")
    parser.add_argument("--dtypes", default="bfloat16,float16", help="the types to walk in")
    parser.add_argument("--sanitizer", type=Path, help="compute-sanitizer, if it is not found by itself")
    parser.add_argument("--nvcc", type=Path, help="nvcc, if it is not found by itself")
    parser.add_argument("--walk", action="store_true", help="walk, under whatever tool this runs")
    parser.add_argument("--shard", default="1/1", help="I/N: the part of the walk")
    parser.add_argument(
        "--kernels", action="store_true", help="walk without any tool, and name the kernels that were never started"
    )
    parser.add_argument("--planted", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Parse the command line, compile the planted errors, run the tools."""
    options = parse()
    if options.planted is not None:
        return run_planted(*options.planted)
    if options.walk:
        from gpu_walk import walk

        index, count = map(int, options.shard.split("/"))
        only = [name for name in options.only.split(",") if name]
        return walk(options.seconds, options.dtypes.split(","), only, (index, count))
    if options.kernels:
        from gpu_walk import never_started

        left, count = never_started(options.dtypes.split(","))
        print(*left, f"{count - len(left)} of {count} kernels are walked", sep="\n")
        return 1 if left else 0
    sanitizer = options.sanitizer or find_program("compute-sanitizer")
    if sanitizer is None:
        print("compute-sanitizer was not found; name it with --sanitizer")
        return 1
    nvcc = options.nvcc or find_program("nvcc", [sanitizer.resolve().parent])
    if nvcc is None:
        print("nvcc was not found; name it with --nvcc")
        return 1
    watch = Watch(sanitizer, options.seconds)
    signal.signal(signal.SIGTERM, watch.stop)
    with tempfile.TemporaryDirectory() as folder:
        planted = Path(folder) / "planted_errors.cubin"
        subprocess.run([nvcc, "-cubin", "-arch=native", "-o", planted, PLANTED_ERRORS], check=True)
        is_clean = check(options, watch, planted)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
