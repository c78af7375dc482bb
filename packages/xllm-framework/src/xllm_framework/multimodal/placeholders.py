"""Makes room for media in a prompt's token ids. Knows nothing of tokenizers, templates or models."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from xllm_framework.errors import InvalidRequest
from xllm_framework.multimodal.media_item import MediaItem

Expansion = Sequence[int]
"""The token ids that take the place of one place-holder."""


def expand_placeholders(
    token_ids: Sequence[int],
    media: Sequence[tuple[MediaItem, Expansion]],
    marks: Mapping[int, str],
    targets: Mapping[str, int],
) -> tuple[list[int], list[MediaItem]]:
    """Return the prompt with each mark replaced by its medium's expansion, and the media with their ranges.

    Args:
        token_ids: the prompt, with one mark a medium, as a chat template writes it.
        media: in the order of their parts in the conversation.
        marks: token id -> kind of the medium that it stands for.
        targets: kind -> token id, within an expansion, of the tokens that get embeddings.

    Raises:
        InvalidRequest: marks and media do not correspond one to one; a text that spells a mark does that.
    """
    result: list[int] = []
    placed: list[MediaItem] = []
    waiting = {kind: deque(pair for pair in media if pair[0].kind == kind) for kind in targets}
    for token_id in token_ids:
        kind = marks.get(token_id)
        if kind is None:
            result.append(token_id)
            continue
        if not waiting[kind]:
            raise _mismatch(kind, token_ids, media, marks)
        item, expansion = waiting[kind].popleft()
        placed.append(item.at(_ranges(expansion, targets[kind], len(result))))
        result.extend(expansion)
    for kind, left in waiting.items():
        if left:
            raise _mismatch(kind, token_ids, media, marks)
    return result, placed


def _mismatch(
    kind: str, token_ids: Sequence[int], media: Sequence[tuple[MediaItem, Expansion]], marks: Mapping[int, str]
) -> InvalidRequest:
    num_parts = sum(item.kind == kind for item, _ in media)
    num_marks = sum(marks.get(token_id) == kind for token_id in token_ids)
    return InvalidRequest(
        f"The messages bring {num_parts} parts of kind {kind}, but the prompt has {num_marks} place-holders for them: "
        f"text must not spell the model's {kind} tokens, and its chat template must show every part.",
        "messages",
    )


def _ranges(expansion: Expansion, target: int, offset: int) -> list[tuple[int, int]]:
    """Return the runs of `target` in `expansion`, shifted by `offset`."""
    ranges: list[tuple[int, int]] = []
    for index, token_id in enumerate(expansion, offset):
        if token_id != target:
            continue
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges
