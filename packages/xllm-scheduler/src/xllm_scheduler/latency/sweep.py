"""Measures a device at start: runs steps of chosen shapes and fits a model. Knows nothing of how a step is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from xllm_scheduler.latency.accuracy import Accuracy, measure_accuracy
from xllm_scheduler.latency.fit import LatencySample, fit_latency_model
from xllm_scheduler.latency.model import LatencyModel
from xllm_scheduler.latency.shape import StepShape

_SHORTEST_PROMPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Which steps are measured; all lengths in tokens."""

    max_prompt_tokens: int = 2048
    """The longest prompt; then each half as long as the one before."""
    prefix_step: int = 256
    """Each prompt is also computed behind prefixes of this length and its multiples, doubling."""
    max_decode_batch: int = 25
    """Decode batches have 1, 3, 5, ... sequences, up to this many."""
    num_repeats: int = 3
    """The median of so many runs counts."""

    def shapes(self) -> Iterator[StepShape]:
        """Return the shapes, larger prompts first, then decode batches over short and long sequences."""
        length = self.max_prompt_tokens
        while length >= min(_SHORTEST_PROMPT, self.max_prompt_tokens):
            yield StepShape(chunks=((length, 0),))
            before = self.prefix_step
            while before + length <= self.max_prompt_tokens:
                yield StepShape(chunks=((length, before),))
                before *= 2
            length //= 2
        for num_sequences in range(1, self.max_decode_batch + 1, 2):
            for before in (self.max_prompt_tokens // 8, self.max_prompt_tokens - 1):
                yield StepShape(decodes=((1, before),) * num_sequences)


def measure_latency_model(
    run_step: Callable[[StepShape], float], plan: SweepPlan | None = None
) -> tuple[LatencyModel, Accuracy]:
    """Return the model of a device, and how well it fits.

    Args:
        run_step: runs one step of a shape, synchronously, and returns its seconds. Each shape is run once more than
            measured, because the first run may compile or capture.
    """
    plan = plan or SweepPlan()
    samples = []
    for shape in plan.shapes():
        run_step(shape)
        samples.append(LatencySample(shape, median(run_step(shape) for _ in range(plan.num_repeats))))
    model = fit_latency_model(samples)
    return model, measure_accuracy(model, samples)
