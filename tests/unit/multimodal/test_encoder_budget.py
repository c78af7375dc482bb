"""Chunks under a step's budget of embeddings, and the tiles of pictures of any resolution."""

from __future__ import annotations

import pytest

from xllm_framework.multimodal import MediaItem, PromptMedia
from xllm_framework.multimodal.anyres import best_resolution, fitted_size, num_features, reduced_shape, unpadded
from xllm_scheduler.budget import RankBudget, StepBudget
from xllm_scheduler.encoder_budget import charge_encoder, tokens_within_encoder_budget

MEDIA = PromptMedia(
    [
        MediaItem("image", bytes([n]) * 16, (1, 2, 2), (1, 1, 1, 3), b"", [(at, at + 10)])
        for n, at in enumerate((5, 20, 40))
    ]
)
LIMIT = 20


def budget(num_left: int) -> StepBudget:
    return StepBudget([RankBudget(1000, 1000)], num_encoder_tokens_left=num_left)


@pytest.mark.parametrize(
    ("start", "num_tokens", "num_left", "expected"),
    [
        (0, 60, 20, 40),  # two media fit, the chunk ends before the third
        (0, 60, 19, 20),
        (0, 60, 9, 5),
        (0, 12, 20, 12),  # it may end inside a medium
        (12, 8, 0, 8),  # a medium that was begun costs nothing more
        (5, 60, 9, 0),
        (50, 10, 0, 10),
    ],
)
def test_chunks_end_before_media_that_are_too_much(start: int, num_tokens: int, num_left: int, expected: int) -> None:
    assert tokens_within_encoder_budget(MEDIA, start, num_tokens, LIMIT, budget(num_left)) == expected


def test_one_medium_above_the_limit_has_a_step_of_its_own() -> None:
    assert tokens_within_encoder_budget(MEDIA, 0, 60, 4, budget(4)) == 20
    assert tokens_within_encoder_budget(MEDIA, 5, 60, 4, budget(3)) == 0


def test_a_chunk_is_charged_for_the_media_that_it_begins() -> None:
    left = budget(LIMIT)
    charge_encoder(MEDIA, 6, 30, left)
    assert left.num_encoder_tokens_left == LIMIT - 10


CHOICES = [[56, 56], [56, 112], [112, 56], [112, 112]]


@pytest.mark.parametrize(
    ("size", "resolution", "fitted"),
    [
        ((50, 100), (56, 112), (56, 112)),
        ((100, 50), (112, 56), (112, 56)),
        ((30, 30), (56, 56), (56, 56)),
        ((100, 90), (112, 112), (112, 101)),
        ((10, 90), (56, 112), (13, 112)),
    ],
)
def test_pictures_take_the_resolution_that_keeps_most(
    size: tuple[int, int], resolution: tuple[int, int], fitted: tuple[int, int]
) -> None:
    assert best_resolution(size, CHOICES) == resolution
    assert fitted_size(size, resolution) == fitted


def test_features_of_padding_and_beyond_the_limit_do_not_count() -> None:
    assert unpadded((100, 90), 8, 8) == (slice(0, 8), slice(0, 8))
    assert reduced_shape(8, 8, 4, 9) == (8, 8)
    assert reduced_shape(8, 8, 4, 1) == (4, 4)
    assert num_features((100, 100), (2, 2), 4, 9) == 16 + 8 * 9
