"""One step as flat arrays that any executor can take. Numpy only; knows nothing of torch, devices or models.

For S scheduled sequences with T tokens in all, of which R rows are sampled:

    token_ids, positions, slot_mapping   [T]      sequence after sequence
    query_start                          [S + 1]  sequence s owns rows [query_start[s], query_start[s + 1])
    seq_lens                             [S]      tokens whose KV is in the cache once the step has run
    block_tables                         [S, B]   row s lists the blocks held for its tokens, computed and scheduled, then 0
    sample_rows                          [R]      rows of [0, T) whose logits are needed

Where a model has several groups of layers, `slot_mapping` and `block_tables` are the first group's, and `more_groups` has those of
the others. Where it has linear state, `state_slots` [S, 2] are the slots that each sequence reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_framework.batch.media_rows import MediaRows
from xllm_framework.batch.pooled_rows import PooledRows
from xllm_framework.kv_cache.host_tier import BlockMoves


@dataclass(slots=True)
class SamplingRows:
    """Sampling options of the R sampled rows, as arrays, so that rows with different options share one pass."""

    temperature: npt.NDArray[np.float32]
    """[R]; 0 is greedy, others are at least `MIN_TEMPERATURE`."""
    top_p: npt.NDArray[np.float32]
    """[R]"""
    top_k: npt.NDArray[np.int32]
    """[R]; 0 is off."""
    min_p: npt.NDArray[np.float32]
    """[R]"""
    seed: npt.NDArray[np.uint64]
    """[R]; already mixed with the sequence index, so that n sequences differ."""
    step: npt.NDArray[np.int64]
    """[R]; index of the token to be drawn among the sequence's output: the counter of its random numbers."""
    num_logprobs: npt.NDArray[np.int32]
    """[R]; -1 none, 0 the sampled token's only, k the k best also."""
    presence_penalty: npt.NDArray[np.float32]
    frequency_penalty: npt.NDArray[np.float32]
    repetition_penalty: npt.NDArray[np.float32]
    penalised: list[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]] = field(default_factory=list)
    """(row, prompt token ids, output token ids) of the rows with penalties."""
    logit_bias: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]] = field(default_factory=list)
    """(row, token ids, biases) of the rows with a bias."""
    banned: list[tuple[int, npt.NDArray[np.int64]]] = field(default_factory=list)
    """(row, token ids that must not be drawn now): end tokens before `min_tokens`."""
    allowed: AllowedTokens | None = None
    """What the constrained rows may take; None when there are none."""

    @property
    def is_all_greedy(self) -> bool:
        """Whether every row takes its most probable token."""
        return not self.temperature.any()

    def changed(self) -> npt.NDArray[np.int64]:
        """Return the rows, rising, whose logits are changed before anything is drawn."""
        rows = {row for row, _, _ in (*self.penalised, *self.logit_bias)} | {row for row, _ in self.banned}
        if self.allowed is not None:
            rows.update(self.allowed.rows.tolist())
        return np.array(sorted(rows), np.int64)

    def take(self, rows: npt.NDArray[np.int64]) -> SamplingRows:
        """Return the options of some rows, rising, which are numbered anew."""
        place = {row: index for index, row in enumerate(rows.tolist())}
        allowed = None
        if self.allowed is not None:
            is_taken = np.isin(self.allowed.rows, rows)
            if is_taken.any():
                allowed = AllowedTokens(np.searchsorted(rows, self.allowed.rows[is_taken]), self.allowed.bits[is_taken])
        return SamplingRows(
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            min_p=self.min_p[rows],
            seed=self.seed[rows],
            step=self.step[rows],
            num_logprobs=self.num_logprobs[rows],
            presence_penalty=self.presence_penalty[rows],
            frequency_penalty=self.frequency_penalty[rows],
            repetition_penalty=self.repetition_penalty[rows],
            penalised=[(place[row], prompt, output) for row, prompt, output in self.penalised if row in place],
            logit_bias=[(place[row], ids, biases) for row, ids, biases in self.logit_bias if row in place],
            banned=[(place[row], ids) for row, ids in self.banned if row in place],
            allowed=allowed,
        )


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where a step's tokens lie for one further group of layers; see `kv_cache.layer_groups`."""

    slot_mapping: npt.NDArray[np.int64]
    block_tables: npt.NDArray[np.int32]


@dataclass(slots=True)
class ForwardInput:
    """One step's input for one rank; see the module's table for shapes.

    The values of `token_ids` may be written to; those of the other arrays not, for inputs of several steps share them.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    sample_rows: npt.NDArray[np.int64]
    sampling: SamplingRows
    max_query_len: int
    moves: BlockMoves | None = None
    """Moves between host and device, which happen once and before `block_copies`, whatever becomes of the step."""
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to) block ids, to be copied before anything is written; no block is both."""
    prompt_logprobs: list[tuple[int, int, npt.NDArray[np.int32]]] = field(default_factory=list)
    """(scheduled index s, k, target token ids): the log-probabilities of `target` at the first len(target) rows of s."""
    pooled: list[PooledRows] = field(default_factory=list)
    """What of the step's hidden states pooling requests want."""
    media: MediaRows | None = None
    """Images and videos among the rows; None for text."""
    more_groups: list[GroupTables] = field(default_factory=list)
    """The second group of layers and those behind it; empty mostly."""
    state_slots: npt.NDArray[np.int32] | None = None
    """[S, 2]; slots of linear state that are read and written, all of them read before any is written. A sequence of which
    nothing is computed yet begins with zeros, whatever its first slot holds. None for models without one."""

    @property
    def groups(self) -> list[GroupTables]:
        """Where the tokens lie, for each group of layers."""
        return [GroupTables(self.slot_mapping, self.block_tables), *self.more_groups]

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.seq_lens)
