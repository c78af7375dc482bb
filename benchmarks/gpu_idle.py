"""Share of the time in which a GPU computes nothing while it serves, and what the host did meanwhile; prints tables.

    python benchmarks/gpu_idle.py [--model qwen3-8b] [--runs 32,256,32:penalised] [--output-tokens 64] [--check]

A run is a number of requests of 1024 tokens, which the offline API takes at once, and what they ask of sampling (greedy where nothing is
said). With dummy weights it is made once to warm up, and once under torch's profiler, which sees what runs on the device, and the CUDA
calls of the host. What the host does besides is told by clock readings around the parts of its loop, and by garbage collections, which
stop it on whatever thread they run. A gap is time without a kernel or copy; it belongs to the step that ends after it. `--check` fails
where the share of a whole run is over 3 %. `--trace` writes what the profiler saw for Perfetto.
"""

from __future__ import annotations

import argparse
import bisect
import gc
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from gpu_serving import INPUT_TOKENS, OPTIONS, write_model
from torch.profiler import ProfilerActivity, profile

from gpu import MODELS
from xllm_framework.batch import ForwardInput, ForwardInputBuilder
from xllm_runtime import LLM, SamplingParams
from xllm_runtime.executor.cuda_graph_decode import CapturedDecode
from xllm_runtime.executor.cuda_graph_output import DeviceOutput, SampledOutput
from xllm_runtime.executor.cuda_graph_prompts import PromptGraphs
from xllm_runtime.master.loop import EngineLoop
from xllm_runtime.worker.llm import LLMWorker
from xllm_scheduler import Scheduler

GOAL = 0.03
LEAST_GAP_US = 20.0
"""Shorter gaps are between kernels, not the host's."""
LARGEST = 6
"""Gaps that are listed one by one."""
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "logprobs": {"temperature": 0.0, "logprobs": 5},
}
WATCHED = (
    (Scheduler, "schedule", "plan"),
    (Scheduler, "update", "update"),
    (ForwardInputBuilder, "build", "build the input"),
    (LLMWorker, "begin", "start the step"),
    (CapturedDecode, "capture", "capture a decode step"),
    (PromptGraphs, "capture", "capture prompts"),
    (DeviceOutput, "wait", "wait for a step"),
    (SampledOutput, "wait", "wait for a step"),
    (EngineLoop, "_finish", "hand outputs out"),
    (EngineLoop, "_take_messages", "take messages"),
)
"""Methods of the loop's thread, and what they do. Time in one is not counted in the one that called it."""


@dataclass(frozen=True, slots=True)
class Span:
    """What went on from `start` to `end`, nanoseconds since the epoch."""

    start: int
    end: int
    name: str

    def overlap(self, start: int, end: int) -> int:
        """Return how much of [start, end) it covers."""
        return max(0, min(self.end, end) - max(self.start, start))


class HostRecord:
    """What the loop's thread did when, and which kinds of steps it started."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        """One after the other."""
        self.has_prompts: list[bool] = []
        """Of each step that was started."""
        self.elsewhere: list[Span] = []
        """Garbage collections on other threads."""
        self._collection_began = 0
        self._doing: list[str] = []
        self._since = 0
        self._thread = 0

    def clear(self) -> None:
        """Forget what was recorded."""
        self.spans, self.has_prompts, self.elsewhere = [], [], []

    def all_spans(self) -> list[Span]:
        """Return what was done in order of its end; a collection elsewhere lies within what the loop did."""
        return sorted((*self.spans, *self.elsewhere), key=lambda span: span.end)

    def watch(self) -> None:
        """Record calls of `WATCHED` and garbage collections from now on."""
        for owner, name, what in WATCHED:
            setattr(owner, name, self._recorded(getattr(owner, name), what))
        gc.callbacks.append(self._on_collection)

    def _recorded(self, method: Callable[..., Any], what: str) -> Callable[..., Any]:
        @wraps(method)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._thread = self._thread or threading.get_ident()
            if method.__name__ == "begin":
                self._note_step(*args)
            self._enter(what)
            try:
                return method(*args, **kwargs)
            finally:
                self._leave()

        return recorded

    def _note_step(self, worker: LLMWorker, forward_input: ForwardInput, before: object = None) -> None:
        self.has_prompts.append(forward_input.max_query_len > 1)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() == self._thread:
            self._enter("collect garbage") if phase == "start" else self._leave()
        elif phase == "start":
            self._collection_began = time.time_ns()
        else:
            self.elsewhere.append(Span(self._collection_began, time.time_ns(), "collect garbage elsewhere"))

    def _enter(self, what: str) -> None:
        self._close()
        self._doing.append(what)

    def _leave(self) -> None:
        self._close()
        if self._doing:
            self._doing.pop()

    def _close(self) -> None:
        now = time.time_ns()
        if self._doing:
            self.spans.append(Span(self._since, now, self._doing[-1]))
        self._since = now


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which nothing ran on the device."""

    start: int
    end: int
    before: str
    """What ran next."""

    @property
    def us(self) -> float:
        """Microseconds."""
        return (self.end - self.start) / 1e3


@dataclass(slots=True)
class Timeline:
    """What ran on the device."""

    start: int
    end: int
    gaps: list[Gap] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    """When results were copied to the host."""

    @classmethod
    def of(cls, device: list[Span]) -> Timeline:
        """Return the timeline of kernels and copies."""
        device = sorted(device, key=lambda span: span.start)
        found = cls(device[0].start, device[0].start)
        for span in device:
            if span.start > found.end:
                found.gaps.append(Gap(found.end, span.start, span.name))
            found.end = max(found.end, span.end)
            if "DtoH" in span.name:
                found.step_ends.append(span.end)
        return found


def measured(
    llm: LLM, prompts: list[list[int]], params: SamplingParams, record: HostRecord, trace: str
) -> tuple[list[Span], list[Span]]:
    """Answer `prompts` under the profiler; return (what ran on the device, CUDA calls of the host)."""
    record.clear()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        llm.generate(prompts, params, use_tqdm=False)
        torch.cuda.synchronize()
    if trace:
        profiler.export_chrome_trace(trace)
    device, calls = [], []
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    for event in results.events() if results is not None else ():
        span = Span(event.start_ns(), event.end_ns(), event.name())
        (device if event.device_type() == torch.autograd.DeviceType.CUDA else calls).append(span)
    return device, calls


def overlapping(spans: Sequence[Span], ends: Sequence[int], gap: Gap) -> list[Span]:
    """Return those of `spans`, in order of their `ends`, that reach into `gap`."""
    found = []
    for span in spans[bisect.bisect_right(ends, gap.start) :]:
        if span.start >= gap.end:
            break
        found.append(span)
    return found


def idle_lines(timeline: Timeline, has_prompts: list[bool]) -> list[str]:
    """Return a table of idle shares: all, and by kind of step where each step left one copy."""
    by_kind: dict[str, list[Gap]] = {"all": timeline.gaps}
    spent = {"all": timeline.end - timeline.start}
    if len(timeline.step_ends) == len(has_prompts):
        names = ["steps with prompts" if has else "decode steps" for has in has_prompts]
        start = timeline.start
        for name, end in zip(names, timeline.step_ends, strict=True):
            spent[name] = spent.get(name, 0) + end - start
            start = end
        for gap in timeline.gaps:
            place = bisect.bisect_left(timeline.step_ends, gap.end)
            if place < len(names):
                by_kind.setdefault(names[place], []).append(gap)
    lines = [f"  {'':20} {'ms':>9} {'idle':>7}   gaps over {LEAST_GAP_US:.0f} us"]
    for name, total in spent.items():
        gaps = by_kind.get(name, [])
        large = [gap.us for gap in gaps if gap.us > LEAST_GAP_US]
        idle = sum(gap.us for gap in gaps) * 1e3 / max(total, 1)
        share = sum(large) * 1e3 / max(total, 1)
        longest = max(large, default=0.0) / 1e3
        lines.append(
            f"  {name:20} {total / 1e6:9.1f} {idle:7.2%}   {len(large)}, {share:.2%}, longest {longest:.2f} ms"
        )
    return lines


def cause_lines(gaps: list[Gap], host: list[Span], calls: list[Span]) -> list[str]:
    """Return what followed the gaps, what the host did in them, and the longest ones."""
    calls = sorted(calls, key=lambda span: span.end)
    host_ends, call_ends = [span.end for span in host], [span.end for span in calls]
    followers: dict[str, list[float]] = defaultdict(list)
    activities: dict[str, float] = defaultdict(float)
    waits: dict[str, float] = defaultdict(float)
    longest = []
    for gap in gaps:
        followers[gap.before[:60]].append(gap.us)
        doing: dict[str, float] = defaultdict(float)
        for span in overlapping(host, host_ends, gap):
            doing[span.name] += span.overlap(gap.start, gap.end) / 1e3
        doing["anything else"] = max(0.0, gap.us - sum(doing.values()))
        called: dict[str, float] = defaultdict(float)
        for span in overlapping(calls, call_ends, gap):
            called[span.name] += span.overlap(gap.start, gap.end) / 1e3
        for name, us in doing.items():
            activities[name] += us
        for name, us in called.items():
            waits[name] += us
        longest.append((gap.us, gap.before[:40], _largest(doing), _largest(called)))
    after = "; ".join(f"{name} {len(us)} x, {sum(us) / 1e3:.1f} ms" for name, us in _by_sum(followers)[:5])
    lines = [f"  before:   {after}", f"  the host: {_largest(activities, 9)}", f"  in calls: {_largest(waits, 6)}"]
    for us, name, host_did, host_called in sorted(longest, reverse=True)[:LARGEST]:
        lines.append(f"  {us / 1e3:6.2f} ms before {name}: {host_did} | {host_called}")
    return lines


def slow_call_lines(calls: list[Span]) -> list[str]:
    """Return which CUDA calls kept the host waiting."""
    spent: dict[str, list[float]] = defaultdict(list)
    for span in calls:
        spent[span.name].append((span.end - span.start) / 1e3)
    rows = [(name, us) for name, us in _by_sum(spent) if max(us) > 1000.0][:6]
    slow = [f"{name} {sum(x > 1000 for x in us)} of {len(us)}, longest {max(us) / 1e3:.1f} ms" for name, us in rows]
    return ["  calls over 1 ms: " + "; ".join(slow)]


def host_lines(record: HostRecord) -> list[str]:
    """Return what the loop's thread did in the whole run, milliseconds."""
    spent: dict[str, float] = defaultdict(float)
    for span in record.spans:
        spent[span.name] += (span.end - span.start) / 1e3
    long = [(span.end - span.start) / 1e6 for span in record.elsewhere if span.end - span.start > 1e6]
    collections = ", ".join(f"{ms:.0f}" for ms in long) or "none"
    return [
        f"  host, ms in all: {_largest(spent, 12)}",
        f"  garbage collections on other threads over 1 ms: {collections}",
    ]


def _by_sum(found: dict[str, list[float]]) -> list[tuple[str, list[float]]]:
    return sorted(found.items(), key=lambda item: -sum(item[1]))


def _largest(found: dict[str, float], count: int = 4) -> str:
    largest = sorted(found.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {us / 1e3:.2f}" for name, us in largest if us > 0)


def report(llm: LLM, run: str, output_tokens: int, record: HostRecord, trace: str) -> float:
    """Print the tables of one run of the option `--runs`; return the idle share of all of it."""
    count, _, sampling = run.partition(":")
    draw = random.Random(0)
    prompts = [[draw.randrange(1000, 20000) for _ in range(INPUT_TOKENS)] for _ in range(int(count))]
    params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, **SAMPLING[sampling or "greedy"])
    llm.generate(prompts, params, use_tqdm=False)
    device, calls = measured(llm, prompts, params, record, trace)
    timeline = Timeline.of(device)
    large = [gap for gap in timeline.gaps if gap.us > LEAST_GAP_US]
    print(f"{count} requests at once, {sampling or 'greedy'}: {len(record.has_prompts)} steps", flush=True)
    lines = idle_lines(timeline, record.has_prompts) + cause_lines(large, record.all_spans(), calls)
    print("\n".join([*lines, *slow_call_lines(calls), *host_lines(record)]), flush=True)
    return 1e3 * sum(gap.us for gap in timeline.gaps) / (timeline.end - timeline.start)


def main() -> int:
    """Print the tables; with --check return 1 where a share is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS], default="qwen3-8b")
    parser.add_argument("--runs", default="32,256", help=f"NUMBER or NUMBER:SAMPLING, of {', '.join(SAMPLING)}")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--trace", default="", help="file for the last run's trace")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    record = HostRecord()
    record.watch()
    with tempfile.TemporaryDirectory() as folder:
        write_model(MODELS[options.model], Path(folder))
        with LLM(folder, device="cuda", load_format="dummy", **OPTIONS) as llm:
            runs = options.runs.split(",")
            shares = [report(llm, run, options.output_tokens, record, options.trace) for run in runs]
    return 1 if options.check and max(shares) > GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
