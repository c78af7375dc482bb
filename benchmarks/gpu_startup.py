"""Seconds from the start of the server to its first token over HTTP, on a GPU beside the CPU of the same machine; prints one table.

    python benchmarks/gpu_startup.py [--model FILE] [--repetitions 3] [--phases] [--check]

The model is the demo model unless `--model` names another. `cpu` is what the CPU serves it with (C++ without torch), `cpu, torch` the same
modules as on the GPU. Servers take turns, and medians are printed. `--phases` adds where the time goes in the process that loads the
model. `--check` fails where the GPU adds more than 2 s to what the CPU takes with torch.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from peers.servers import Contender
from peers.workloads import start_seconds

GOAL_S = 2.0
SERVERS = {"cuda": ("cuda",), "cpu, torch": ("cpu", "--model-impl", "python"), "cpu": ("cpu",)}
"""Device and further options by name."""
PHASES = (
    ("xllm_runtime.worker.llm", "select_platform", "find the device"),
    ("xllm_runtime.worker.llm", "load_model", "build the model and load weights"),
    ("xllm_runtime.worker.llm", "select_executor", "make the executor"),
    ("xllm_runtime.worker.llm:LLMWorker", "num_blocks_that_fit", "measure memory"),
    ("xllm_runtime.worker.llm:LLMWorker", "allocate_kv_cache", "allocate the cache"),
    ("xllm_runtime.engine.llm:LLMEngine", "_warm_up", "first step"),
)
"""Functions of the process that loads the model, in their order."""


def contender(name: str, model: str) -> Contender:
    """Return our server of `SERVERS`."""
    command = [
        sys.executable,
        "-m",
        "xllm_server",
        "--model",
        model,
        "--log-level",
        "warning",
        "--device",
        *SERVERS[name],
    ]
    return Contender(f"xllm {name}", command)


def medians(model: str, names: list[str], repetitions: int) -> dict[str, float]:
    """Return the median seconds of each server; a first round of all of them does not count."""
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repetitions + 1):
        for name in names:
            taken[name].append(start_seconds(contender(name, model)))
    for name, seconds in taken.items():
        print(f"  {name:11} first {seconds[0]:.2f} s, then {', '.join(f'{s:.2f}' for s in seconds[1:])}", flush=True)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def print_phases(model: str, device: str) -> None:
    """Load the model in this process and print what each phase takes."""
    start = time.perf_counter()

    def mark(what: str) -> None:
        nonlocal start
        now = time.perf_counter()
        print(f"  {what:34} {now - start:6.3f} s", flush=True)
        start = now

    import torch

    mark("import torch")
    importlib.import_module("xllm_runtime.master.engine_side")
    importlib.import_module("xllm_runtime.worker.llm")
    mark("import the engine side")
    if device == "cuda":
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        mark("CUDA context")
        importlib.import_module("xllm_kernels.cuda.decode")
        mark("import the kernels")
    for place, name, what in PHASES:
        module, _, class_name = place.partition(":")
        owner = importlib.import_module(module)
        owner = getattr(owner, class_name) if class_name else owner
        setattr(owner, name, _timed(getattr(owner, name), what, is_profiled=name == "_warm_up"))
    from xllm_runtime import LLM, SamplingParams

    with LLM(model, device=device, model_impl="auto" if device == "cuda" else "python") as llm:
        mark("all of loading")
        for _ in range(4):
            llm.generate(
                ["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), use_tqdm=False
            )
            mark("a request of one token")


def _timed(function: Callable[..., Any], what: str, *, is_profiled: bool) -> Callable[..., Any]:
    """Return `function`, which then prints how long it takes, and maybe what in it takes longest."""

    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        profile, start = cProfile.Profile(), time.perf_counter()
        try:
            return profile.runcall(function, *args, **kwargs) if is_profiled else function(*args, **kwargs)
        finally:
            print(f"    {what:32} {time.perf_counter() - start:6.3f} s", flush=True)
            if is_profiled:
                print_slowest(pstats.Stats(profile))

    return timed


def print_slowest(stats: Any) -> None:
    """Print the functions that took longest, what they called left out."""
    for (file, line, name), (_, count, seconds, *_rest) in sorted(stats.stats.items(), key=lambda call: -call[1][2])[
        :10
    ]:
        print(f"      {seconds:6.3f} s in {count} x {name} ({'/'.join(file.split('/')[-2:])}:{line})", flush=True)


def main() -> int:
    """Print the table; with --check return 1 where a GPU adds too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--servers", default="cuda;cpu, torch;cpu", help="names separated by semicolons")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--phases-of", default="", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.phases_of:
        print_phases(options.model, options.phases_of)
        return 0
    found = medians(options.model, options.servers.split(";"), options.repetitions)
    for name, seconds in found.items():
        print(f"{name:11} {seconds:.2f} s; cuda adds {found['cuda'] - seconds:.2f} s to it")
    for device in ("cuda", "cpu") if options.phases else ():
        print(f"phases on {device}:", flush=True)
        subprocess.run([sys.executable, __file__, "--model", options.model, "--phases-of", device], check=True)
    added = found["cuda"] - found.get("cpu, torch", found["cuda"])
    return 1 if options.check and added > GOAL_S else 0


if __name__ == "__main__":
    sys.exit(main())
