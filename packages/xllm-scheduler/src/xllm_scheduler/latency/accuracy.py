"""How far a latency model is off. Knows nothing of how it was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xllm_scheduler.latency.fit import LatencySample
from xllm_scheduler.latency.model import LatencyModel


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors over a set of measured steps; best on steps that the model was not fitted to."""

    num_samples: int
    mean_absolute_ms: float
    mean_percentage: float
    worst_percentage: float

    def to_text(self) -> str:
        """Return one line."""
        return (
            f"{self.num_samples} steps: mean error {self.mean_absolute_ms:.3f} ms, {self.mean_percentage:.1f} %, "
            f"worst {self.worst_percentage:.1f} %"
        )


def measure_accuracy(model: LatencyModel, samples: Sequence[LatencySample]) -> Accuracy:
    """Compare what `model` predicts with what was measured; `samples` must not be empty."""
    measured = np.array([sample.seconds for sample in samples])
    error = np.abs(np.array([model.step_s(sample.shape) for sample in samples]) - measured)
    percentage = 100 * error / measured
    return Accuracy(len(samples), 1e3 * float(error.mean()), float(percentage.mean()), float(percentage.max()))
