"""Walks every CUDA kernel through small calls under NVIDIA's compute-sanitizer: memory, races, barriers, memory that nobody set.

    python benchmarks/sanitize_gpu.py [--tools memcheck,racecheck,synccheck,initcheck] [--seconds 120] [--only NAME,...]

Needs a Hopper GPU, the kernels built, and compute-sanitizer and nvcc of the CUDA toolkit, found by PATH, beside each other, or by
`--sanitizer` and `--nvcc`. Before a tool's silence is believed it must find an error that `planted_errors.cu` makes for it.
`gpu_walk.py` says what is walked through. Exits with 0 only where every tool finished its walk and found the planted error alone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 9
"""Status of a run in which a tool found an error."""
STARTING_S = 60
"""What a tool may take before and after its walk."""
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


def watch(options: argparse.Namespace, tool: str, arguments: list[str], limit_s: float) -> int:
    """Run this script with `arguments` under `tool`; return its status, or that of the tool where it found something."""
    # Memory is only known to be set where every kernel that sets it is watched, torch's too.
    watched = () if tool == "initcheck" else OUR_KERNELS
    command = [options.sanitizer, "--tool", tool, *watched, "--target-processes", "all", "--show-backtrace", "device"]
    command += ["--print-limit", "20", "--error-exitcode", str(FOUND), sys.executable, __file__, *arguments]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor an allocation of its own
    try:
        return subprocess.run(command, check=False, env=environment, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        print(f"{tool} was not done after {limit_s:.0f} s", flush=True)
        return 1


def check(options: argparse.Namespace, tool: str, planted: Path) -> bool:
    """Run one tool on its planted error and on the walk; say what came of it, and return whether all is well."""
    begin = time.monotonic()
    print(f"== {tool}, a planted error:", flush=True)
    if watch(options, tool, ["--planted", tool, str(planted)], STARTING_S) != FOUND:
        print(f"{tool} does not see an error that was made for it: its silence would mean nothing", flush=True)
        return False
    print(f"== {tool}, the walk:", flush=True)
    walk = ["--walk", str(options.seconds), "--dtypes", options.dtypes, "--only", options.only]
    status = watch(options, tool, walk, options.seconds + STARTING_S)
    verdict = {0: "nothing found", FOUND: "errors found"}.get(status, f"the walk failed with status {status}")
    print(f"== {tool}: {verdict}, {time.monotonic() - begin:.0f} s", flush=True)
    return status == 0


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
    parser.add_argument("--seconds", type=float, default=120, help="the longest that one tool's walk may take")
    parser.add_argument("--only", default="", help="the parts of the walk to take, all if empty")
    parser.add_argument("--dtypes", default="bfloat16,float16", help="the types to walk in")
    parser.add_argument("--sanitizer", type=Path, help="compute-sanitizer, if it is not found by itself")
    parser.add_argument("--nvcc", type=Path, help="nvcc, if it is not found by itself")
    parser.add_argument("--walk", type=float, help=argparse.SUPPRESS)  # what runs under a tool
    parser.add_argument("--planted", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Parse the command line, compile the planted errors, run the tools one after the other."""
    options = parse()
    if options.planted is not None:
        return run_planted(*options.planted)
    if options.walk is not None:
        from gpu_walk import walk

        return walk(options.walk, options.dtypes.split(","), [name for name in options.only.split(",") if name])
    options.sanitizer = options.sanitizer or find_program("compute-sanitizer")
    if options.sanitizer is None:
        print("compute-sanitizer was not found; name it with --sanitizer")
        return 1
    nvcc = options.nvcc or find_program("nvcc", [options.sanitizer.resolve().parent])
    if nvcc is None:
        print("nvcc was not found; name it with --nvcc")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        planted = Path(folder) / "planted_errors.cubin"
        subprocess.run([nvcc, "-cubin", "-arch=native", "-o", planted, PLANTED_ERRORS], check=True)
        results = {tool: check(options, tool, planted) for tool in options.tools.split(",")}
    print(", ".join(f"{tool} {'clean' if is_clean else 'NOT CLEAN'}" for tool, is_clean in results.items()))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
