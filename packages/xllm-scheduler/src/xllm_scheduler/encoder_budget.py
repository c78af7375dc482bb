"""Keeps one step from encoding more images and videos than it should. Knows nothing of encoders or of what they keep.

A medium counts for the step that computes its first place-holder. A chunk ends before a medium that the step has no budget
for, but may end anywhere inside one: its embeddings are there for the next chunk.
"""

from __future__ import annotations

from xllm_framework.multimodal.prompt_media import PromptMedia
from xllm_scheduler.budget import StepBudget


def tokens_within_encoder_budget(
    media: PromptMedia, start: int, num_tokens: int, limit: int, budget: StepBudget
) -> int:
    """Return how many of `num_tokens` tokens behind `start` the step can compute; maybe 0.

    One medium with more embeddings than `limit` has a step of its own.
    """
    num_left = budget.num_encoder_tokens_left
    for item in media.begun_in(start, start + num_tokens):
        if item.num_embeddings > num_left and num_left < limit:
            return item.start - start
        num_left -= item.num_embeddings
    return num_tokens


def charge_encoder(media: PromptMedia, start: int, num_tokens: int, budget: StepBudget) -> None:
    """Count the media whose first place-holder is among `num_tokens` tokens behind `start`."""
    budget.num_encoder_tokens_left -= sum(item.num_embeddings for item in media.begun_in(start, start + num_tokens))
