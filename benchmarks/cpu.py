"""Our server on the CPU beside llama.cpp's and vLLM's: decode, first token, throughput, start, memory; ratios in one run.

    python benchmarks/cpu.py --llama-cpp PYTHON [--vllm PYTHON --vllm-model FOLDER] [--check]

PYTHON is an interpreter with the peer installed: `llama-cpp-python[server]`, or vllm for CPUs. All servers run the demo
model with the same threads: from its Q4_1 file as it is, and from the same weights rounded to bfloat16 (FOLDER: those in
Hugging Face layout). They take turns, run by run; figures are medians. The machine must be quiet: a run during which
others used more than 3 % of it is repeated, and marked with ! where that did not help. `--check` exits with 1 where a
goal is missed or could not be measured. A long run can be cut: `--works` and `--servers` choose parts of it, and `--results
FILE` keeps figures from one part to the next. Goals compare what comes through HTTP with what comes through HTTP; llama.cpp
without a server is measured beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGMLQuantizationType
from peers.machine import drop_from_page_cache, peak_bytes, read_bandwidth, undisturbed
from peers.servers import Contender, RunningServer, llama_cpp, vllm, xllm
from peers.weights import demo_file, tensor_bytes, write_copy
from peers.workloads import WORKLOADS, fill_with_long_requests, in_process_decode_rate, start_seconds

DECODE, FIRST_TOKEN, EIGHT, THIRTY_TWO = (workload.name for workload in WORKLOADS)
IN_PROCESS = "llama.cpp in process"
START_WARM, START_COLD, MEMORY, BANDWIDTH = "start to first token, warm", "the same, cold", "peak memory", "bandwidth"
UNITS = {workload.name: workload.unit for workload in WORKLOADS} | {
    START_WARM: "s",
    START_COLD: "s",
    MEMORY: "MB",
    BANDWIDTH: "GB/s",
}
MACHINE = "this machine"
WORKLOAD_NAMES = dict(zip(("decode", "first-token", "8", "32"), WORKLOADS, strict=True))
WORKS = ("start", *WORKLOAD_NAMES, "memory", "in-process", "bandwidth")
"""Parts that `--works` chooses from."""


@dataclass(slots=True)
class Results:
    """Figures by (work, server)."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    disturbed: set[tuple[str, str]] = field(default_factory=set)
    path: Path | None = None
    """File that keeps the figures."""

    def add(self, work: str, server: str, measured: tuple[float, bool]) -> None:
        """Take one figure and whether the machine was quiet."""
        value, is_quiet = measured
        self.values.setdefault((work, server), []).append(value)
        if not is_quiet:
            self.disturbed.add((work, server))
        self.save()
        print(f"  {work:<28} {server:<22} {value:10.2f} {UNITS.get(work, '')}", file=sys.stderr, flush=True)

    def load(self, path: Path) -> None:
        """Take the figures that an earlier part left at `path`, if any, and keep new ones there."""
        self.path = path
        for work, server, values, is_disturbed in json.loads(path.read_text()) if path.exists() else ():
            self.values[work, server] = values
            if is_disturbed:
                self.disturbed.add((work, server))

    def save(self) -> None:
        """Leave all figures where they are kept, if anywhere."""
        if self.path is None:
            return
        rows = [(*key, values, key in self.disturbed) for key, values in self.values.items()]
        self.path.write_text(json.dumps(rows))

    def median(self, work: str, server: str) -> float | None:
        """Return the median, or None for what was not measured."""
        values = self.values.get((work, server))
        return statistics.median(values) if values else None

    def best(self, work: str, weights: str, best: Callable[[list[float]], float]) -> float | None:
        """Return the best peer server's figure on the weights named."""
        peers = [f"llama.cpp {weights}", f"vllm {weights}"]
        found = [value for peer in peers if (value := self.median(work, peer)) is not None]
        return best(found) if found else None


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold: a figure of ours against a limit."""

    name: str
    value: Callable[[Results], float | None]
    limit: float
    is_upper: bool = False

    def line(self, results: Results) -> tuple[str, bool]:
        """Return what to print, and whether the goal is met."""
        value = self.value(results)
        sign = "<=" if self.is_upper else ">="
        if value is None:
            return f"not measured   {self.name}: goal {sign} {self.limit:g}", False
        is_met = value <= self.limit if self.is_upper else value >= self.limit
        return f"{'met' if is_met else 'MISSED':<14} {self.name}: {value:.2f}, goal {sign} {self.limit:g}", is_met


def ratio(
    work: str, ours: str, peer_weights: str, best: Callable[[list[float]], float] = max
) -> Callable[[Results], float | None]:
    """Return our figure over the best peer's."""

    def value(results: Results) -> float | None:
        mine, other = results.median(work, f"xllm {ours}"), results.best(work, peer_weights, best)
        return mine / other if mine is not None and other else None

    return value


def figure(work: str, server: str) -> Callable[[Results], float | None]:
    """Return a figure as it is."""
    return lambda results: results.median(work, server)


def bandwidth_share(results: Results) -> float | None:
    """Return what our bfloat16 decode reads a second, over what the machine reads."""
    used, whole = results.median(BANDWIDTH, "xllm bf16"), results.median(BANDWIDTH, MACHINE)
    return used / whole if used is not None and whole else None


def better_of(*values: Callable[[Results], float | None]) -> Callable[[Results], float | None]:
    """Return the larger of several."""

    def value(results: Results) -> float | None:
        found = [number for each in values if (number := each(results)) is not None]
        return max(found) if found else None

    return value


GOALS = (
    Goal("decode of one request, bf16, over llama.cpp", ratio(DECODE, "bf16", "bf16"), 1.6),
    Goal("share of the machine's read bandwidth that this decode uses", bandwidth_share, 0.85),
    Goal("decode of one request, the Q4_1 file, over llama.cpp on it", ratio(DECODE, "Q4_1", "Q4_1"), 2.5),
    Goal(
        "first token of a prompt of 512, bf16, over the best peer", ratio(FIRST_TOKEN, "bf16", "bf16", min), 0.7, True
    ),
    Goal("8 requests at once, bf16, over the best peer", ratio(EIGHT, "bf16", "bf16"), 1.6),
    Goal("32 requests at once, bf16, over the best peer", ratio(THIRTY_TWO, "bf16", "bf16"), 1.4),
    Goal(
        "32 requests at once, int8 or the Q4_1 file, over the best peer",
        better_of(ratio(THIRTY_TWO, "int8", "bf16"), ratio(THIRTY_TWO, "Q4_1", "bf16")),
        2.0,
    ),
    Goal("seconds from start to first token, warm", figure(START_WARM, "xllm Q4_1"), 2.0, True),
    Goal("seconds from start to first token, cold", figure(START_COLD, "xllm Q4_1"), 4.0, True),
    Goal("MB of peak memory with 32 sequences of 512", figure(MEMORY, "xllm Q4_1"), 600.0, True),
)


def main() -> int:
    """Run, print the table and the goals, and return the exit status."""
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        bfloat16_file = Path(folder) / "demo-bf16.gguf"
        write_copy(demo_file(), bfloat16_file, GGMLQuantizationType.BF16)
        results = Results()
        if options.results:
            results.load(options.results)
        if "start" in options.works:
            measure_starts(options, results, Path(folder))
        measure_servers(options, results, contenders(options, bfloat16_file))
        if options.llama_cpp and "in-process" in options.works:
            measure_in_process(options, results, bfloat16_file)
        if "bandwidth" in options.works:
            measure_bandwidth(options, results, tensor_bytes(bfloat16_file))
    print_table(results)
    lines = [goal.line(results) for goal in GOALS]
    print("\n" + "\n".join(line for line, _ in lines))
    return 0 if all(is_met for _, is_met in lines) or not options.check else 1


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", default="", help="interpreter with llama-cpp-python[server]")
    parser.add_argument("--vllm", default="", help="interpreter with vLLM for CPUs")
    parser.add_argument("--vllm-model", type=Path, help="the demo model in Hugging Face layout, in bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of every server")
    parser.add_argument("--repetitions", type=int, default=5, help="of which the median counts")
    parser.add_argument(
        "--quiet-timeout", type=float, default=600.0, help="seconds to wait for quiet; 0 takes every run as it is"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument("--works", default=",".join(WORKS), help="parts to run, comma-separated; none of them: empty")
    parser.add_argument("--servers", default="", help='servers to run, comma-separated, as "xllm bf16"; all without it')
    parser.add_argument("--results", type=Path, help="file that keeps figures from part to part")
    options = parser.parse_args()
    options.works = set(filter(None, options.works.split(",")))
    if unknown := options.works - set(WORKS):
        parser.error(f"--works has no {', '.join(sorted(unknown))}; it has {', '.join(WORKS)}")
    if bool(options.vllm) != bool(options.vllm_model):
        parser.error("--vllm and --vllm-model go together")
    return options


def contenders(options: argparse.Namespace, bfloat16_file: Path) -> list[Contender]:
    """Return the servers to set side by side."""
    threads = options.threads
    found = [
        xllm("bf16", bfloat16_file, threads),
        xllm("Q4_1", demo_file(), threads),
        xllm("int8", bfloat16_file, threads, "--quantization", "int8"),
    ]
    if options.llama_cpp:
        found.append(llama_cpp("bf16", options.llama_cpp, bfloat16_file, threads))
        found.append(llama_cpp("Q4_1", options.llama_cpp, demo_file(), threads))
    if options.vllm:
        found.append(vllm(options.vllm, options.vllm_model, threads))
    chosen = options.servers.split(",") if options.servers else [contender.name for contender in found]
    return [contender for contender in found if contender.name in chosen]


def measure_starts(options: argparse.Namespace, results: Results, folder: Path) -> None:
    """Start our server over and over: once with empty caches each, once with full ones."""
    contender = xllm("Q4_1", demo_file(), options.threads)
    for repetition in range(options.repetitions):
        caches = folder / f"caches{repetition}"
        environment = {"PYTHONPYCACHEPREFIX": str(caches / "python"), "XDG_CACHE_HOME": str(caches)}
        environment["PYTHONDONTWRITEBYTECODE"] = ""
        for work in (START_COLD, START_WARM):
            if work == START_COLD:
                drop_from_page_cache(demo_file())
            run = functools.partial(start_seconds, contender, environment)
            # A cold start cannot be repeated with the same caches: one run, disturbed or not.
            max_runs = 1 if work == START_COLD else 4
            measured = undisturbed(run, [], timeout_s=options.quiet_timeout, max_runs=max_runs)
            results.add(work, contender.name, measured)


def measure_servers(options: argparse.Namespace, results: Results, servers: list[Contender]) -> None:
    """Run every workload on every server in turn; then fill ours and see what memory they took."""
    workloads = [workload for name, workload in WORKLOAD_NAMES.items() if name in options.works]
    if not workloads and "memory" not in options.works:
        return
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(RunningServer(contender)) for contender in servers]
        own = [server.pid for server in running]
        for workload in workloads:
            for server in running:
                workload.measure(server, options.repetitions)  # warms caches up, with prompts of its own
            for repetition in range(options.repetitions):
                for server in running:
                    run = workload.with_fresh_prompts(server, repetition, options.repetitions + 1)
                    measured = undisturbed(run, own, timeout_s=options.quiet_timeout)
                    results.add(workload.name, server.contender.name, measured)
        for server in running if "memory" in options.works else ():
            if server.contender.is_ours:
                fill_with_long_requests(server)
            results.add(MEMORY, server.contender.name, (peak_bytes(server.pid) / 1e6, True))


def measure_in_process(options: argparse.Namespace, results: Results, bfloat16_file: Path) -> None:
    """Measure llama.cpp without a server between, the strongest that it can be for one request."""
    for _ in range(options.repetitions):
        for weights, path in (("bf16", bfloat16_file), ("Q4_1", demo_file())):
            run = functools.partial(in_process_decode_rate, options.llama_cpp, str(path), options.threads)
            measured = undisturbed(run, [os.getpid()], timeout_s=options.quiet_timeout)
            results.add(DECODE, f"{IN_PROCESS} {weights}", measured)


def measure_bandwidth(options: argparse.Namespace, results: Results, weight_bytes: int) -> None:
    """Measure how fast the machine reads, and say how fast our bfloat16 decode does."""
    for _ in range(options.repetitions):
        measured = undisturbed(
            lambda: read_bandwidth(options.threads) / 1e9, [os.getpid()], timeout_s=options.quiet_timeout
        )
        results.add(BANDWIDTH, MACHINE, measured)
    rate = results.median(DECODE, "xllm bf16")
    if rate is not None:
        results.add(BANDWIDTH, "xllm bf16", (rate * weight_bytes / 1e9, (DECODE, "xllm bf16") not in results.disturbed))


def print_table(results: Results) -> None:
    """Print a line a work and server: the median, the spread, and the ratio to the best peer on the same weights."""
    print(f"\n{'work':<28} {'server':<26} {'median':>10} {'':<6} {'spread':>7}  to the best peer")
    for (work, server), values in results.values.items():
        middle = statistics.median(values)
        spread = (max(values) - min(values)) / middle
        mark = "!" if (work, server) in results.disturbed else " "
        print(
            f"{work:<28} {server:<26} {middle:>10.2f}{mark}{UNITS[work]:<6} {spread:>7.0%}  {comparison(results, work, server)}"
        )


def comparison(results: Results, work: str, server: str) -> str:
    """Return how a figure of ours compares, as text."""
    name, _, weights = server.partition(" ")
    if name != "xllm" or work in (START_WARM, START_COLD, MEMORY, BANDWIDTH):
        return ""
    best = min if work == FIRST_TOKEN else max
    peer = "bf16" if weights == "int8" else weights
    value = ratio(work, weights, peer, best)(results)
    return f"x {value:.2f} ({peer})" if value is not None else ""


if __name__ == "__main__":
    sys.exit(main())
