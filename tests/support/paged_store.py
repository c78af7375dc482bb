"""An executor without a model: a paged store of token ids, whose next token is a hash of everything that it reads.

It writes each scheduled token into its slot and then reads the sequence back through its block table. A lost, repeated,
stale or foreign token changes the hash, and with it all that follows; reading is also compared with the sequence itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import Batch, ForwardInput, ForwardOutput
from xllm_framework.batch.forward_input import GroupTables
from xllm_framework.batch.sequence_rows import sequence_seed
from xllm_framework.kv_cache import BlockMoves
from xllm_framework.request import Request, StoppingChecker

NOTHING = -1


def next_token(context: npt.NDArray[np.int32], seed: int, vocab_size: int) -> int:
    """Return the token that follows `context` under `seed`."""
    return zlib.crc32(np.asarray(context, np.int32).tobytes() + seed.to_bytes(8, "little")) % vocab_size


def logprob_of(context: npt.NDArray[np.int32], token_id: int) -> float:
    """Return a made-up log-probability of `token_id` after `context`, exact in float32."""
    return -float(zlib.crc32(np.asarray(context, np.int32).tobytes()) % 1000 + token_id) / 64


def expected_tokens(
    request: Request, index: int, stopping: StoppingChecker, vocab_size: int, sliding_window: int = 0
) -> list[int]:
    """Return what sequence `index` of `request` must generate, worked out without any scheduler or cache."""
    twin = Request(
        "twin", request.sequences[0].prompt_token_ids, request.sampling, arrival_time_s=0.0, seed=request.seed
    )
    sequence = twin.sequences[index]
    if request.sampling.max_tokens == 0:
        return []
    while not sequence.is_finished:
        visible = sequence.token_ids[-sliding_window:]
        sequence.append(next_token(visible, sequence_seed(twin, sequence), vocab_size))
        stop = stopping.check(sequence, request.sampling)
        if stop is not None:
            sequence.finish(stop[0])
    return sequence.output_token_ids.tolist()


def _digest(tokens: npt.NDArray[np.int32]) -> int:
    return zlib.crc32(np.asarray(tokens, np.int32).tobytes())


class PagedStore:
    """`num_blocks` blocks of `block_size` slots, each holding one token id and its position.

    Each group of layers (one entry of `sliding_windows` each, 0 for full attention) writes a token to a slot of its own, and
    reads what its window shows. A token's successor is a hash of what the group that sees most has read. Linear states are
    (tokens, hash of them), in slots of their own.
    """

    def __init__(
        self, num_blocks: int, block_size: int, vocab_size: int = 50, sliding_windows: tuple[int, ...] = (0,)
    ) -> None:
        self._sliding_windows = sliding_windows
        self._sliding_window = 0 if 0 in sliding_windows else max(sliding_windows)
        self._states: dict[int, tuple[int, int]] = {}
        self.vocab_size = vocab_size
        self.num_computed_tokens = 0
        self.logprobs_after: Callable[[list[int]], npt.NDArray[np.float64]] | None = None
        """If set, the alternatives that rows report are the most probable tokens by this."""
        self._host: dict[int, list[npt.NDArray[np.int32]]] = {}
        self.fail_rows: dict[str, str] = {}
        """By request id: the error that its sampled rows get."""
        self._block_size = block_size
        self._tokens = np.full(num_blocks * block_size, NOTHING, np.int32)
        self._positions = np.full(num_blocks * block_size, NOTHING, np.int32)

    def execute(self, batch: Batch, step: ForwardInput) -> ForwardOutput:
        """Write the step's tokens, read every sequence back, and sample."""
        self._move(step.moves)
        for old, new in step.block_copies:
            for array in (self._tokens, self._positions):
                blocks = array.reshape(-1, self._block_size)
                blocks[new] = blocks[old]
        groups = step.groups
        assert len(groups) == len(self._sliding_windows)
        slots = np.concatenate([group.slot_mapping for group in groups])
        assert (slots >= self._block_size).all(), "the padding block is written to"
        assert len(set(slots.tolist())) == len(slots), "two tokens share a slot"
        for group in groups:
            self._tokens[group.slot_mapping] = step.token_ids
            self._positions[group.slot_mapping] = step.positions
        self.num_computed_tokens += step.num_tokens
        contexts = [self._read(step, index, groups) for index in range(step.num_sequences)]
        if step.state_slots is not None:
            self._advance_states(step, contexts)
        for item, context, seq_len in zip(batch, contexts, step.seq_lens.tolist(), strict=True):
            if not item.sequence.is_finished and item.sequence.block_table:
                known = item.sequence.token_ids[seq_len - len(context) : seq_len]
                self._check_context(context.tolist(), known.tolist())
        owner = {int(row): index for index, row in enumerate(step.query_start[1:] - 1)}
        token_ids, logprobs, errors = [], [], {}
        for row, position in enumerate(step.sample_rows.tolist()):
            index = owner[position]
            token_id = next_token(
                contexts[index][-self._sliding_window :], int(step.sampling.seed[row]), self.vocab_size
            )
            request_id = batch.scheduled[index].request.request_id
            if request_id in self.fail_rows:
                errors[row] = self.fail_rows[request_id]
                token_id = -1
            token_ids.append(token_id)
            logprobs.append(logprob_of(contexts[index], token_id))
        top_ids = np.tile(np.arange(4, dtype=np.int32), (len(token_ids), 1))
        top_logprobs = -top_ids.astype(np.float32)
        if self.logprobs_after is not None and len(token_ids):
            width = min(max(int(step.sampling.num_logprobs.max()), 0), self.vocab_size)
            sampled = [contexts[owner[position]].tolist() for position in step.sample_rows.tolist()]
            values = np.array([self.logprobs_after(context[-self._sliding_window :]) for context in sampled])
            top_ids = np.argsort(-values, axis=1)[:, :width].astype(np.int32)
            top_logprobs = np.take_along_axis(values, top_ids.astype(np.int64), axis=1).astype(np.float32)
        return ForwardOutput(
            np.array(token_ids, np.int32),
            logprobs=np.array(logprobs, np.float32),
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            prompt_logprobs=self._prompt_logprobs(step, contexts),
            errors=errors or None,
        )

    def _move(self, moves: BlockMoves | None) -> None:
        """Move blocks to the host, then from it; copy states."""
        for old, new in moves.states if moves else ():
            self._states[new] = self._states[old]
        blocks = [array.reshape(-1, self._block_size) for array in (self._tokens, self._positions)]
        for block_id, slot in moves.to_host if moves else ():
            self._host[slot] = [array[block_id].copy() for array in blocks]
        for slot, block_id in moves.to_device if moves else ():
            for array, kept in zip(blocks, self._host[slot], strict=True):
                array[block_id] = kept

    @staticmethod
    def _check_context(read: list[int], known: list[int]) -> None:
        """Compare with the sequence itself, but for a last token that it does not know yet."""
        num_known = len(known) - (known[-1] < 0)
        assert read[:num_known] == known[:num_known]

    def _advance_states(self, step: ForwardInput, contexts: list[npt.NDArray[np.int32]]) -> None:
        """Read all states, then write the next ones; contexts are whole, because a state depends on everything."""
        written = step.state_slots[:, 1].tolist()
        assert len(set(written)) == len(written), "two sequences share a state"
        assert min(written) > 0, "the padding slot is written to"
        for index, (context, (read, _)) in enumerate(zip(contexts, step.state_slots.tolist(), strict=True)):
            start = int(step.positions[step.query_start[index]])
            if start:
                assert self._states[read] == (start, _digest(context[:start])), "a state is another one's, or stale"
        for context, slot in zip(contexts, written, strict=True):
            self._states[slot] = (len(context), _digest(context))

    def _read(self, step: ForwardInput, index: int, groups: list[GroupTables]) -> npt.NDArray[np.int32]:
        """Return the tokens that sequence `index` reads where most is seen, checking what every group reads."""
        contexts = [
            self._read_group(step, index, group, window)
            for group, window in zip(groups, self._sliding_windows, strict=True)
        ]
        longest = max(contexts, key=len)
        for context in contexts:
            assert context.tolist() == longest[len(longest) - len(context) :].tolist(), "two groups differ"
        return longest

    def _read_group(self, step: ForwardInput, index: int, group: GroupTables, window: int) -> npt.NDArray[np.int32]:
        """Return the tokens that attention would read, checking that each lies where it belongs."""
        first = 0
        if window:
            first = max(0, int(step.positions[step.query_start[index]]) - window + 1)
        positions = np.arange(first, step.seq_lens[index])
        blocks = group.block_tables[index, positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size
        assert self._positions[slots].tolist() == positions.tolist(), "a slot holds another position's token"
        return self._tokens[slots].copy()

    @staticmethod
    def _prompt_logprobs(step: ForwardInput, contexts: list[npt.NDArray[np.int32]]):
        result = {}
        for index, k, targets in step.prompt_logprobs:
            start = int(step.positions[step.query_start[index]])
            logprobs = [logprob_of(contexts[index][: start + i + 1], int(token)) for i, token in enumerate(targets)]
            top_ids = np.tile(np.arange(k, dtype=np.int32), (len(targets), 1))
            result[index] = (np.array(logprobs, np.float32), top_ids, -top_ids.astype(np.float32))
        return result
