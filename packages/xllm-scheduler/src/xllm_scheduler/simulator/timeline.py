"""Draws a simulation as a picture. Knows nothing of how it ran; needs matplotlib (`pip install xllm-scheduler[plot]`)."""

from __future__ import annotations

from pathlib import Path

from xllm_framework.errors import InvalidConfig
from xllm_scheduler.simulator.report import SimulationReport

_WAITING, _PREFILL, _DECODE = "#c8c8c8", "#e08214", "#2c7fb8"


def draw_timeline(report: SimulationReport, path: Path) -> None:
    """Write a picture (its kind by the suffix): each sequence's life above, blocks and queue over time below.

    Raises:
        InvalidConfig: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidConfig("A timeline needs matplotlib: pip install 'xllm-scheduler[plot]'.") from error
    figure = Figure(figsize=(12, 8), layout="constrained")
    lives, load = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    spans = sorted(report.spans.values())
    for row, (arrival_s, scheduled_s, first_token_s, end_s) in enumerate(spans):
        starts = [arrival_s, scheduled_s or end_s, first_token_s or end_s, end_s]
        for start, stop, colour in zip(starts, starts[1:], (_WAITING, _PREFILL, _DECODE), strict=False):
            lives.barh(row, stop - start, left=start, height=0.8, color=colour, linewidth=0)
    for name, colour in (("waiting", _WAITING), ("prefill", _PREFILL), ("decode", _DECODE)):
        lives.barh(0, 0, color=colour, label=name)
    lives.set_ylabel("sequence, by arrival")
    lives.legend(loc="lower right")
    times = [sample.time_s for sample in report.samples]
    load.step(times, [100 * sample.num_allocated_blocks / report.num_blocks for sample in report.samples], where="post")
    load.set_ylabel("blocks in use, %")
    load.set_ylim(0, 100)
    load.set_xlabel("seconds")
    queue = load.twinx()
    queue.step(times, [sample.num_waiting for sample in report.samples], where="post", color="#666666", linewidth=0.8)
    queue.set_ylabel("waiting")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"The timeline {path} cannot be written: {error}.") from error
