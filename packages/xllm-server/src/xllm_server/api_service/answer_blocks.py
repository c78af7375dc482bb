"""An answer as a row of blocks (reasoning, text, tool calls), as the Messages and Responses APIs show it. Knows no JSON.

A block opens with its first piece, grows, and ends when another kind of piece comes or the answer ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from xllm_server.parsers.answer import AnswerDelta


class BlockKind(Enum):
    """What a block holds."""

    REASONING = "reasoning"
    TEXT = "text"
    TOOL_CALL = "tool_call"


@dataclass(slots=True)
class Block:
    """One block of an answer."""

    index: int
    kind: BlockKind
    call_index: int = -1
    call_id: str = ""
    name: str = ""
    """Of the function, for a tool call."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What the block holds so far: text, or a call's arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockOpened:
    """A block begins."""

    block: Block


@dataclass(frozen=True, slots=True)
class BlockGrew:
    """A block got `text`."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """Nothing more comes for a block."""

    block: Block


BlockEvent = BlockOpened | BlockGrew | BlockEnded


class AnswerBlocks:
    """The blocks of one answer, in order."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._is_open = False

    @property
    def has_calls(self) -> bool:
        """Whether a tool call was begun."""
        return any(block.kind is BlockKind.TOOL_CALL for block in self.blocks)

    def feed(self, delta: AnswerDelta) -> Iterator[BlockEvent]:
        """Yield what `delta` does to the blocks."""
        if delta.reasoning:
            yield from self._grow(Block(len(self.blocks), BlockKind.REASONING), delta.reasoning)
        if delta.content:
            yield from self._grow(Block(len(self.blocks), BlockKind.TEXT), delta.content)
        for call in delta.calls:
            block = Block(len(self.blocks), BlockKind.TOOL_CALL, call.index, call.id or "", call.name or "")
            yield from self._grow(block, call.arguments)

    def end(self) -> Iterator[BlockEvent]:
        """Yield the end of the block that is open, if one is."""
        if self._is_open:
            self._is_open = False
            yield BlockEnded(self.blocks[-1])

    def _grow(self, block: Block, text: str) -> Iterator[BlockEvent]:
        """Add `text` to the open block when it is of `block`'s kind (and call), else to `block`, which opens."""
        last = self.blocks[-1] if self._is_open else None
        if last is None or (last.kind, last.call_index) != (block.kind, block.call_index):
            yield from self.end()
            self.blocks.append(block)
            self._is_open = True
            last = block
            yield BlockOpened(block)
        if text:
            last.pieces.append(text)
            yield BlockGrew(last, text)
