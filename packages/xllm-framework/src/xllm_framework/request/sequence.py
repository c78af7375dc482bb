"""One growing token list and how far it is computed. Knows nothing of text, of policies or of devices.

token_ids   [0 ......................................................... num_tokens)
prompt      [0 ............ num_prompt_tokens)
computed    [0 ....... num_computed_tokens)                KV is in the cache
cached      [0 .. num_cached_tokens)                       of these, taken from the prefix cache at the last admission
to compute                [num_computed_tokens ............ num_tokens)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.constraint import ConstraintState
from xllm_framework.multimodal.prompt_media import PromptMedia
from xllm_framework.request.status import FinishReason, SequenceStatus


class Sequence:
    """A sequence of a request. The scheduler and the block manager change it, on the engine side's one thread.

    `block_table` lists the ids of the blocks that hold its KV, in order of position; only a block manager changes it,
    and only by appending: when blocks are given up, a new list takes its place, so that copies of it can be extended.
    `more_tables` are those of further groups of layers, where a model has several (`kv_cache.layer_groups`); none is
    shorter than `block_table`, and all grow with it. `state_slots` are where its linear state lies and where the next
    step writes it, of models that have one (`kv_cache.state_slots`).
    `last_token_id` is the newest token, -1 if there is none. While the step that draws it is still computed, a placeholder
    takes its place, negative as no token is: -1 - row, `row` being its place among the step's sampled rows.
    `rank` is the data-parallel rank whose blocks those are; it changes only while the sequence holds none.
    `block_hashes` caches the prefix-cache keys of its full blocks, of which tokens never change once they are full.
    `media` are the images and videos of the prompt, its request's.
    `constraint_state` follows its output through a grammar, None where the output is free; tokens survive a preemption, and
    so does this.
    """

    __slots__ = (
        "_tokens",
        "block_hashes",
        "block_table",
        "constraint_state",
        "error",
        "finish_reason",
        "index",
        "last_token_id",
        "media",
        "more_tables",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "rank",
        "request_id",
        "state_slots",
        "status",
        "stop_reason",
    )

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt_token_ids: npt.ArrayLike,
        reserve: int = 64,
        media: PromptMedia | None = None,
    ) -> None:
        prompt = np.asarray(prompt_token_ids, dtype=np.int32)
        self._tokens: npt.NDArray[np.int32] = np.empty(len(prompt) + max(reserve, 1), dtype=np.int32)
        self._tokens[: len(prompt)] = prompt
        self.request_id = request_id
        self.index = index
        self.media = media
        self.num_prompt_tokens = len(prompt)
        self.num_tokens = len(prompt)
        self.last_token_id = int(prompt[-1]) if len(prompt) else -1
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.rank = 0
        self.block_table: list[int] = []
        self.more_tables: list[list[int]] = []
        self.state_slots: tuple[int, int] | None = None
        self.block_hashes: list[bytes] = []
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        self.error: str | None = None
        self.constraint_state: ConstraintState | None = None

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """Prompt and output so far, int32 [num_tokens]; a view that the next `append` may detach."""
        return self._tokens[: self.num_tokens]

    @property
    def prompt_token_ids(self) -> npt.NDArray[np.int32]:
        """The prompt, int32 [num_prompt_tokens]."""
        return self._tokens[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> npt.NDArray[np.int32]:
        """What was generated so far, int32 [num_output_tokens]."""
        return self._tokens[self.num_prompt_tokens : self.num_tokens]

    @property
    def num_output_tokens(self) -> int:
        """How many tokens were generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose KV is still to be computed: 1 in decode, more in prefill."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def tables(self) -> list[list[int]]:
        """The block table of each group of layers; only the first, empty, while it holds no blocks."""
        return [self.block_table, *self.more_tables]

    @tables.setter
    def tables(self, tables: list[list[int]]) -> None:
        self.block_table, *self.more_tables = tables

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.status is SequenceStatus.FINISHED

    def append(self, token_id: int) -> None:
        """Add one generated token; amortised O(1)."""
        if self.num_tokens == len(self._tokens):
            grown = np.empty(2 * len(self._tokens), dtype=np.int32)
            grown[: self.num_tokens] = self._tokens
            self._tokens = grown
        self._tokens[self.num_tokens] = token_id
        self.last_token_id = token_id
        self.num_tokens += 1

    def replace_placeholder(self, token_id: int) -> None:
        """Put the token that was drawn in the place of the placeholder, which is the newest token."""
        self._tokens[self.num_tokens - 1] = token_id
        self.last_token_id = token_id

    def drop_placeholder(self) -> None:
        """Forget a placeholder, if the newest token is one: the token will be drawn again."""
        if self.last_token_id < 0 and self.num_tokens > self.num_prompt_tokens:
            self.num_tokens -= 1
            self.last_token_id = int(self._tokens[self.num_tokens - 1])

    def turn_states(self) -> None:
        """Follow a step that was computed, or undo that: what it wrote is read next."""
        if self.state_slots is not None:
            self.state_slots = self.state_slots[::-1]

    def drop_output(self) -> None:
        """Forget everything that was generated."""
        self.num_tokens = self.num_prompt_tokens
        self.last_token_id = int(self._tokens[self.num_tokens - 1])

    def fork(self) -> Sequence:
        """Return a copy of its tokens, without blocks, as another beam of the same request."""
        twin = Sequence(self.request_id, self.index, self.token_ids, len(self._tokens) - self.num_tokens, self.media)
        twin.num_prompt_tokens = self.num_prompt_tokens
        twin.num_cached_tokens = self.num_cached_tokens
        twin.rank = self.rank
        twin.block_hashes = self.block_hashes.copy()
        twin.status = self.status
        return twin

    def take_over(self, other: Sequence) -> None:
        """Take tokens and blocks of another beam of the same request, which keeps none."""
        self._tokens, self.num_tokens, self.last_token_id = other._tokens, other.num_tokens, other.last_token_id
        self.num_computed_tokens, self.block_hashes = other.num_computed_tokens, other.block_hashes
        self.tables, other.tables = other.tables, [[]]
        self.rank, self.status = other.rank, other.status
        other.num_computed_tokens = 0

    def finish(self, reason: FinishReason, *, stop_reason: int | None = None, error: str | None = None) -> None:
        """Mark it as ended. Its blocks are the scheduler's to free."""
        self.status = SequenceStatus.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.error = error

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id}#{self.index}, {self.status.name}, computed {self.num_computed_tokens}"
            f"/{self.num_tokens} of which prompt {self.num_prompt_tokens}, {len(self.block_table)} blocks)"
        )
