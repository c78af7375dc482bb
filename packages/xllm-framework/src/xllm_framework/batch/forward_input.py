"""From a `Batch` to flat arrays that any executor can take. Numpy only; knows nothing of torch, devices or models.

For S scheduled sequences with T tokens in all, of which R rows are sampled:

    token_ids, positions, slot_mapping   [T]      sequence after sequence
    query_start                          [S + 1]  sequence s owns rows [query_start[s], query_start[s + 1])
    seq_lens                             [S]      tokens whose KV is in the cache once the step has run
    block_tables                         [S, B]   row s lists seq_lens[s] / block_size blocks (rounded up), then 0
    sample_rows                          [R]      rows of [0, T) whose logits are needed
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.batch import Batch, ScheduledSequence
from xllm_framework.request.request import Request
from xllm_framework.request.sampling_params import MIN_TEMPERATURE
from xllm_framework.request.sequence import Sequence


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

    @property
    def is_all_greedy(self) -> bool:
        """Whether every row takes its most probable token."""
        return not self.temperature.any()


@dataclass(slots=True)
class ForwardInput:
    """One step's input for one rank; see the module's table for shapes."""

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    sample_rows: npt.NDArray[np.int64]
    sampling: SamplingRows
    max_query_len: int
    prompt_logprobs: list[tuple[int, int, npt.NDArray[np.int32]]] = field(default_factory=list)
    """(scheduled index s, k, target token ids): the log-probabilities of `target` at the first len(target) rows of s."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.seq_lens)


class ForwardInputBuilder:
    """Builds `ForwardInput`s for blocks of `block_size` tokens. `eos_token_ids` are banned before `min_tokens`."""

    def __init__(self, block_size: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids

    def build(self, batch: Batch) -> ForwardInput:
        """Return the arrays of `batch`; O(tokens + sequences x blocks), with no copy kept."""
        lengths = np.fromiter((item.num_scheduled_tokens for item in batch), np.int32, len(batch))
        starts = np.fromiter((item.start for item in batch), np.int32, len(batch))
        query_start = np.zeros(len(batch) + 1, np.int32)
        np.cumsum(lengths, out=query_start[1:])
        num_tokens = int(query_start[-1])
        rows = np.repeat(np.arange(len(batch), dtype=np.int32), lengths)
        positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - query_start[:-1], lengths)
        block_tables = self._block_tables(batch)
        block_ids = block_tables[rows, positions // self._block_size].astype(np.int64)
        sampled = [index for index, item in enumerate(batch) if item.is_sampled]
        return ForwardInput(
            token_ids=self._token_ids(batch, num_tokens),
            positions=positions,
            slot_mapping=block_ids * self._block_size + positions % self._block_size,
            query_start=query_start,
            seq_lens=starts + lengths,
            block_tables=block_tables,
            sample_rows=(query_start[1:][sampled] - 1).astype(np.int64),
            sampling=self._sampling_rows([batch.scheduled[index] for index in sampled]),
            max_query_len=int(lengths.max()) if len(batch) else 0,
            prompt_logprobs=self._prompt_logprobs(batch),
        )

    @staticmethod
    def _token_ids(batch: Batch, num_tokens: int) -> npt.NDArray[np.int32]:
        token_ids = np.empty(num_tokens, np.int32)
        row = 0
        for item in batch:
            end = row + item.num_scheduled_tokens
            token_ids[row:end] = item.sequence.token_ids[item.start : item.start + item.num_scheduled_tokens]
            row = end
        return token_ids

    @staticmethod
    def _block_tables(batch: Batch) -> npt.NDArray[np.int32]:
        width = max((len(item.sequence.block_table) for item in batch), default=0)
        tables = np.zeros((len(batch), max(width, 1)), np.int32)
        for row, item in enumerate(batch):
            blocks = item.sequence.block_table
            tables[row, : len(blocks)] = blocks
        return tables

    def _sampling_rows(self, items: list[ScheduledSequence]) -> SamplingRows:
        params = [item.request.sampling for item in items]
        rows = len(items)
        result = SamplingRows(
            temperature=np.fromiter(
                (0.0 if p.is_greedy else max(p.temperature, MIN_TEMPERATURE) for p in params), np.float32, rows
            ),
            top_p=np.fromiter((p.top_p for p in params), np.float32, rows),
            top_k=np.fromiter((max(p.top_k, 0) for p in params), np.int32, rows),
            min_p=np.fromiter((p.min_p for p in params), np.float32, rows),
            seed=np.fromiter((sequence_seed(item.request, item.sequence) for item in items), np.uint64, rows),
            step=np.fromiter((item.sequence.num_output_tokens for item in items), np.int64, rows),
            num_logprobs=np.fromiter((-1 if p.logprobs is None else p.logprobs for p in params), np.int32, rows),
            presence_penalty=np.fromiter((p.presence_penalty for p in params), np.float32, rows),
            frequency_penalty=np.fromiter((p.frequency_penalty for p in params), np.float32, rows),
            repetition_penalty=np.fromiter((p.repetition_penalty for p in params), np.float32, rows),
        )
        for row, (item, p) in enumerate(zip(items, params, strict=True)):
            if p.has_penalties:
                result.penalised.append((row, item.sequence.prompt_token_ids, item.sequence.output_token_ids))
            if p.logit_bias:
                ids = np.fromiter(p.logit_bias.keys(), np.int64, len(p.logit_bias))
                result.logit_bias.append((row, ids, np.fromiter(p.logit_bias.values(), np.float32, len(ids))))
            if item.sequence.num_output_tokens < p.min_tokens:
                banned = {*p.stop_token_ids, *self._eos_token_ids}
                result.banned.append((row, np.fromiter(banned, np.int64, len(banned))))
        return result

    @staticmethod
    def _prompt_logprobs(batch: Batch) -> list[tuple[int, int, npt.NDArray[np.int32]]]:
        wanted = []
        for index, item in enumerate(batch):
            k = item.request.sampling.prompt_logprobs
            if k is None or item.sequence.index > 0:
                continue
            end = min(item.start + item.num_scheduled_tokens + 1, item.sequence.num_prompt_tokens)
            if item.start + 1 < end:
                wanted.append((index, k, item.sequence.token_ids[item.start + 1 : end].copy()))
        return wanted


def sequence_seed(request: Request, sequence: Sequence) -> int:
    """Return the 64-bit seed of one sequence: the request's, mixed with the sequence's index (SplitMix64's constant)."""
    return (request.seed + 0x9E3779B97F4A7C15 * sequence.index) & 0xFFFFFFFFFFFFFFFF
