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


class PagedStore:
    """`num_blocks` blocks of `block_size` slots, each holding one token id and its position.

    With a `sliding_window`, a token's successor is a hash of so many tokens, and nothing else is read.
    """

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50, sliding_window: int = 0) -> None:
        self._sliding_window = sliding_window
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
        assert (step.slot_mapping >= self._block_size).all(), "the padding block is written to"
        self._move(step.moves)
        for old, new in step.block_copies:
            for array in (self._tokens, self._positions):
                blocks = array.reshape(-1, self._block_size)
                blocks[new] = blocks[old]
        assert len(set(step.slot_mapping.tolist())) == step.num_tokens, "two tokens share a slot"
        self._tokens[step.slot_mapping] = step.token_ids
        self._positions[step.slot_mapping] = step.positions
        self.num_computed_tokens += step.num_tokens
        contexts = [self._read(step, index) for index in range(step.num_sequences)]
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
            values = np.array([self.logprobs_after(context) for context in sampled])
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
        """Move blocks to the host, then from it."""
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

    def _read(self, step: ForwardInput, index: int) -> npt.NDArray[np.int32]:
        """Return the tokens that attention of sequence `index` would read, checking that each lies where it belongs."""
        first = 0
        if self._sliding_window:
            first = max(0, int(step.positions[step.query_start[index]]) - self._sliding_window + 1)
        positions = np.arange(first, step.seq_lens[index])
        blocks = step.block_tables[index, positions // self._block_size].astype(np.int64)
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
