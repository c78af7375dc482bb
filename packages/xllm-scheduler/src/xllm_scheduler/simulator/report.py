"""What a simulation measured. Knows nothing of how."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class SimulationReport:
    """Times in seconds of the virtual clock, one entry a sequence."""

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
    prefix_cache_hit_rate: float = 0.0
    num_blocks: int = 0
    peak_blocks: int = 0
    """Most blocks that sequences held at once."""

    def to_text(self) -> str:
        """Return the report as a table."""
        lines = [f"{'ms':<6}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
        for name, values in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("ITL", self.itl_s), ("E2E", self.e2e_s)):
            if values:
                figures = [np.mean(values), *np.percentile(values, (50, 90, 99)), np.max(values)]
                lines.append(f"{name:<6}" + "".join(f"{1e3 * float(figure):>10.2f}" for figure in figures))
        rate = self.num_generated_tokens / self.duration_s if self.duration_s else 0.0
        lines += [
            f"{len(self.e2e_s)} sequences finished, {self.num_failed} failed, in {self.duration_s:.3f} s and "
            f"{self.num_steps} steps",
            f"{self.num_prompt_tokens} prompt and {self.num_generated_tokens} generated tokens, {rate:.0f} generated a second",
            f"{self.num_preemptions} preemptions, prefix cache hit rate {100 * self.prefix_cache_hit_rate:.1f} %",
            f"peak block use {self.peak_blocks} of {self.num_blocks}",
        ]
        return "\n".join(lines)
