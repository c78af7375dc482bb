"""What a simulation measured. Knows nothing of how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class StepSample(NamedTuple):
    """The scheduler at the beginning of one step."""

    time_s: float
    num_running: int
    num_waiting: int
    num_allocated_blocks: int
    num_tokens: int
    """Tokens that the step computes."""


@dataclass(slots=True)
class SimulationReport:
    """Times in seconds of the virtual clock, one entry a sequence, in the order in which they ended."""

    ttft_s: list[float] = field(default_factory=list)
    """Arrival to first token."""
    tpot_s: list[float] = field(default_factory=list)
    """Mean time between tokens, of sequences with two or more."""
    itl_s: list[float] = field(default_factory=list)
    """Every time between two tokens of a sequence."""
    e2e_s: list[float] = field(default_factory=list)
    """Arrival to last token."""
    duration_s: float = 0.0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_failed: int = 0
    """Sequences that ended with an error, a passed deadline included."""
    num_online: int = 0
    """Sequences that somebody waited for."""
    num_met: int = 0
    """Of these, how many met all their objectives."""
    num_leaked_blocks: int = 0
    """Blocks that somebody still held at the end: 0, or there is a fault."""
    prefix_cache_hit_rate: float = 0.0
    num_blocks: int = 0
    samples: list[StepSample] = field(default_factory=list)
    spans: dict[tuple[str, int], tuple[float, float | None, float | None, float]] = field(default_factory=dict)
    """By (request id, sequence index): when it arrived, was first scheduled, had its first token, and ended."""

    @property
    def peak_blocks(self) -> int:
        """Most blocks that sequences held at once."""
        return max((sample.num_allocated_blocks for sample in self.samples), default=0)

    @property
    def mean_block_use(self) -> float:
        """Mean share of the pool that sequences held, over steps."""
        if not self.samples:
            return 0.0
        return float(np.mean([sample.num_allocated_blocks for sample in self.samples])) / max(self.num_blocks, 1)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second."""
        return self.num_generated_tokens / self.duration_s if self.duration_s else 0.0

    @property
    def attainment(self) -> float:
        """Share of the sequences that somebody waited for that met all their objectives; 1 where there were none."""
        return self.num_met / self.num_online if self.num_online else 1.0

    def to_text(self) -> str:
        """Return the report as a table."""
        lines = [f"{'ms':<6}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
        for name, values in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("ITL", self.itl_s), ("E2E", self.e2e_s)):
            if values:
                figures = [np.mean(values), *np.percentile(values, (50, 90, 99)), np.max(values)]
                lines.append(f"{name:<6}" + "".join(f"{1e3 * float(figure):>10.2f}" for figure in figures))
        lines += [
            f"{len(self.e2e_s)} sequences finished, {self.num_failed} failed, in {self.duration_s:.3f} s and "
            f"{self.num_steps} steps",
            f"{self.num_prompt_tokens} prompt and {self.num_generated_tokens} generated tokens, "
            f"{self.tokens_per_s:.0f} generated a second",
            f"SLO attainment {100 * self.attainment:.1f} % of {self.num_online} sequences that somebody waited for",
            f"{self.num_preemptions} preemptions, prefix cache hit rate {100 * self.prefix_cache_hit_rate:.1f} %",
            f"peak block use {self.peak_blocks} of {self.num_blocks}, mean {100 * self.mean_block_use:.1f} %",
        ]
        return "\n".join(lines)
