"""One step of several images at once, each at a step of its own. Knows nothing of requests, or of how images begin and end.

Nothing that a row of the batch computes depends on another row, so images may join and leave between any two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F

from xllm_runtime.models.dit.blocks import StepContext
from xllm_runtime.models.dit.pipelines.interface import Pipeline
from xllm_runtime.models.dit.samples import PromptRow, Sample
from xllm_runtime.models.dit.transformer import Transformer


def denoise(pipeline: Pipeline, samples: Sequence[Sample]) -> None:
    """Take every sample, all of one shape and none of them done, one step further."""
    rows = [(sample, row) for sample in samples for row in sample.rows]
    predictions = _predict(pipeline.transformer, rows)
    stepped = []
    for sample in samples:
        own = predictions[: len(sample.rows), : sample.latents.shape[1]].float()
        predictions = predictions[len(sample.rows) :]
        prediction = pipeline.guide(own, sample.guidance) if len(sample.rows) == 2 else own
        stepped.append(sample.schedule.advance(prediction, sample.step, sample.latents))
    for sample, latents in zip(samples, stepped, strict=True):
        sample.latents = latents
        sample.step += 1


def _predict(transformer: Transformer, rows: Sequence[tuple[Sample, PromptRow]]) -> torch.Tensor:
    """Return the prediction [R, N, C] of each row: from its cache, or computed together with the others."""
    cached = [None if row.cache is None else row.cache.predicted(sample.step) for sample, row in rows]
    computed = [index for index, prediction in enumerate(cached) if prediction is None]
    if not computed:
        return torch.stack([prediction for prediction in cached if prediction is not None])
    batch = [rows[index] for index in computed]
    tokens = torch.cat([sample.tokens() for sample, _ in batch])
    text, context = _texts([row for _, row in batch], batch[0][0])
    modulation = torch.stack([row.modulation[sample.step] for sample, row in batch])
    hidden = transformer.start(tokens, text, context.positions)
    _run_blocks(transformer, hidden, modulation, context, batch)
    fresh = transformer.finish(hidden[:, context.num_text :], modulation)
    for position, index in enumerate(computed):
        sample, row = rows[index]
        cached[index] = fresh[position]
        if row.cache is not None:
            row.cache.computed(sample.step, fresh[position])
    if len(computed) == len(rows):
        return fresh
    return torch.stack([prediction for prediction in cached if prediction is not None])


def _texts(rows: Sequence[PromptRow], sample: Sample) -> tuple[torch.Tensor | None, StepContext]:
    """Return the rows' texts in one tensor [R, L, D], shorter ones padded and masked, and what all blocks are told."""
    texts = [row.text for row in rows if row.text is not None]
    if not texts:
        return None, StepContext(0, rows[0].rotary, sample.positions)
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    rotary = rows[lengths.index(longest)].rotary
    if min(lengths) == longest:
        return torch.stack(texts), StepContext(longest, rotary, sample.positions)
    padded = torch.stack([F.pad(text, (0, 0, 0, longest - len(text))) for text in texts])
    num_image = sample.latents.shape[1] + (0 if sample.more_tokens is None else sample.more_tokens.shape[1])
    mask = torch.ones(len(rows), 1, 1, longest + num_image, dtype=torch.bool, device=padded.device)
    for index, length in enumerate(lengths):
        mask[index, ..., length:longest] = False
    return padded, StepContext(longest, rotary, sample.positions, mask)


def _run_blocks(
    transformer: Transformer,
    hidden: torch.Tensor,
    modulation: torch.Tensor,
    context: StepContext,
    rows: Sequence[tuple[Sample, PromptRow]],
) -> None:
    """Compute all blocks on `hidden` [R, S, D], in place, but for the spans that rows' caches fill."""
    last_block = transformer.num_blocks
    spans = {
        index: row.cache.span
        for index, (_, row) in enumerate(rows)
        if row.cache is not None and row.cache.span is not None
    }
    if not spans:
        transformer.run(hidden, 0, last_block, modulation, context)
        return
    ends = sorted({0, last_block, *(end for span in spans.values() for end in span)})
    start = {index: hidden[index].clone() for index in spans}
    entered: dict[int, torch.Tensor] = {}
    filled: dict[int, torch.Tensor] = {}
    for first, last in pairwise(ends):
        for index, span in spans.items():
            if span[0] == first:
                sample, row = rows[index]
                assert row.cache is not None, "rows with a span have one"
                entered[index] = hidden[index].clone()
                result = row.cache.filled(sample.step, start[index], entered[index])
                if result is not None:
                    filled[index] = result
        _run_some(transformer, hidden, (first, last), modulation, context, set(range(len(rows))) - set(filled))
        for index, span in spans.items():
            if span[1] == last:
                sample, row = rows[index]
                assert row.cache is not None, "rows with a span have one"
                if index in filled:
                    hidden[index] = filled.pop(index)
                else:
                    row.cache.computed_span(sample.step, entered[index], hidden[index].clone())


def _run_some(
    transformer: Transformer,
    hidden: torch.Tensor,
    blocks: tuple[int, int],
    modulation: torch.Tensor,
    context: StepContext,
    chosen: set[int],
) -> None:
    """Compute blocks on the chosen rows of `hidden`, in place."""
    if len(chosen) == len(hidden):
        transformer.run(hidden, *blocks, modulation, context)
    elif chosen:
        indices = torch.tensor(sorted(chosen), device=hidden.device)
        mask = None if context.mask is None else context.mask[indices]
        part = hidden[indices]
        own = StepContext(context.num_text, context.rotary, context.positions, mask)
        transformer.run(part, *blocks, modulation[indices], own)
        hidden[indices] = part
