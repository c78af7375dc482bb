"""Place-holders, pieces, tags and positions of media in a prompt."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.errors import InvalidRequest
from xllm_framework.kv_cache.prefix_cache import HashPrefixCache
from xllm_framework.multimodal import MediaItem, PositionRule, PromptMedia, expand_placeholders, multimodal_positions
from xllm_framework.multimodal.media_item import hash_media
from xllm_framework.request import SamplingParams
from xllm_framework.request.messages import AddRequest

IMAGE, VIDEO, STAMP = 900, 901, 7
MARKS = {IMAGE: "image", VIDEO: "video"}
TARGETS = {"image": IMAGE, "video": VIDEO}


def image(seed: int, grid: tuple[int, int, int] = (1, 4, 6)) -> MediaItem:
    content = bytes([seed]) * 12
    return MediaItem("image", hash_media("image", grid, content), grid, (1, 2, 2, 3), content)


def placed(prompt: list[int], *media: tuple[MediaItem, list[int]]) -> tuple[list[int], PromptMedia]:
    token_ids, items = expand_placeholders(prompt, media, MARKS, TARGETS)
    return token_ids, PromptMedia(items)


def test_each_mark_becomes_its_mediums_tokens() -> None:
    token_ids, media = placed([1, IMAGE, 2, IMAGE, 3], (image(1), [IMAGE] * 3), (image(2), [IMAGE] * 2))
    assert token_ids == [1, IMAGE, IMAGE, IMAGE, 2, IMAGE, IMAGE, 3]
    assert [item.ranges for item in media.items] == [[(1, 4)], [(5, 7)]]
    assert [item.num_embeddings for item in media.items] == [3, 2]


def test_time_stamps_split_a_video_into_ranges() -> None:
    video = MediaItem("video", b"v" * 16, (2, 4, 4), (4, 2, 2, 3), b"")
    frame = [STAMP, VIDEO, VIDEO]
    token_ids, media = placed([VIDEO, 5], (video, frame * 2))
    assert token_ids == [STAMP, VIDEO, VIDEO, STAMP, VIDEO, VIDEO, 5]
    assert media.items[0].ranges == [(1, 3), (4, 6)]
    assert [(piece.first, piece.token, piece.num_tokens) for piece in media.pieces(2, 7)] == [(1, 2, 1), (2, 4, 2)]


@pytest.mark.parametrize("prompt", [[1, 2], [IMAGE, IMAGE], [VIDEO]])
def test_marks_that_do_not_match_the_parts_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="place-holders"):
        placed(prompt, (image(1), [IMAGE]))


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_pieces_of_parts_are_those_of_the_whole(a: int, b: int, c: int) -> None:
    low, middle, high = sorted((a, b, c))
    _, media = placed([1, IMAGE, 2, IMAGE, 3], (image(1), [IMAGE] * 5), (image(2), [IMAGE] * 3))

    def rows(start: int, end: int) -> list[tuple[bytes, int, int]]:
        return [
            (piece.item.content_hash, piece.first + index, piece.token + index)
            for piece in media.pieces(start, end)
            for index in range(piece.num_tokens)
        ]

    assert rows(low, middle) + rows(middle, high) == rows(low, high)


def test_blocks_with_other_pixels_have_other_keys_and_text_before_them_the_same() -> None:
    prompt = [1, 2, 3, 4, IMAGE, 5, 6, 7]
    cache = HashPrefixCache(4)
    keys = []
    for seed in (1, 1, 2):
        token_ids, media = placed(prompt, (image(seed), [IMAGE] * 3))
        found: list[bytes] = []
        cache.match(np.array(token_ids, np.int32), found, "", 2, media)
        keys.append(found)
    text: list[bytes] = []
    cache.match(np.array(token_ids, np.int32), text, "", 2)
    assert keys[0] == keys[1]
    assert keys[0][0] == keys[2][0] == text[0]
    assert len({keys[0][1], keys[2][1], text[1]}) == 3


def test_a_hash_covers_grid_and_details() -> None:
    hashes = {
        hash_media("image", (1, 4, 6), b"x"),
        hash_media("image", (1, 6, 4), b"x"),
        hash_media("video", (1, 4, 6), b"x"),
        hash_media("video", (1, 4, 6), b"x", "0.5 s"),
    }
    assert len(hashes) == 4


def test_positions_follow_the_table_of_the_module() -> None:
    token_ids, media = placed([1, 2, 3, IMAGE, 4, 5], (image(1, (1, 4, 6)), [IMAGE] * 6))
    positions, delta = multimodal_positions(len(token_ids), media.items, PositionRule(merge_size=2))
    assert positions.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7],
    ]
    assert delta == 8 - 11
    whole = PromptMedia(media.items, positions.tobytes(), delta)
    assert whole.rotary_positions(9, 13).tolist() == [[6, 7, 8, 9]] * 3


def test_media_survive_the_wire() -> None:
    token_ids, media = placed([1, IMAGE, 2], (image(1), [IMAGE] * 3))
    message = AddRequest("r", token_ids, SamplingParams(), 0.0, media=media)
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=AddRequest)
    assert copy == message
    assert copy.media is not None
    assert copy.media.items[0].array().shape == (1, 2, 2, 3)
