"""Random paged-attention calls in numpy. Knows nothing of how attention is computed.

Whatever no row may look at (unused slots, unused blocks, table entries that no row needs) is poison: NaN in the cache,
an impossible id in the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

POISON_ID = -7


@dataclass(frozen=True)
class AttentionCase:
    """The arguments of one call, and the tokens of each sequence that are new in it."""

    query: NDArray[np.float32]
    key_cache: NDArray[np.float32]
    value_cache: NDArray[np.float32]
    block_tables: NDArray[np.int32]
    query_start: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    scale: float
    sliding_window: int

    def arguments(self) -> tuple[object, ...]:
        """The positional arguments of the operation."""
        return (
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.query_start,
            self.seq_lens,
            self.scale,
        )

    def rows(self, sequence: int) -> slice:
        """The rows of one sequence in the query."""
        return slice(int(self.query_start[sequence]), int(self.query_start[sequence + 1]))

    def part(self, sequence: int, first: int, end: int) -> AttentionCase:
        """A call with rows [first, end) of one sequence alone, as if the later ones had not come yet."""
        rows = self.rows(sequence)
        num_rows = rows.stop - rows.start
        return replace(
            self,
            query=self.query[rows][first:end],
            block_tables=self.block_tables[sequence : sequence + 1],
            query_start=np.array([0, end - first], np.int32),
            seq_lens=self.seq_lens[sequence : sequence + 1] - np.int32(num_rows - end),
        )


def make_attention_case(
    seed: int,
    *,
    lengths: list[tuple[int, int]],
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    sliding_window: int = 0,
) -> AttentionCase:
    """`lengths` gives (new rows, tokens in the cache with them) of each sequence."""
    rng = np.random.default_rng(seed)
    num_blocks_of = [-(-seq_len // block_size) for _, seq_len in lengths]
    num_blocks = sum(num_blocks_of) + 2
    key_cache, value_cache = (
        np.full((num_blocks, block_size, num_kv_heads, head_dim), np.nan, np.float32) for _ in range(2)
    )
    block_tables = np.full((len(lengths), max(num_blocks_of, default=0) + 1), POISON_ID, np.int32)
    free = rng.permutation(num_blocks)
    for sequence, (num_rows, seq_len) in enumerate(lengths):
        blocks, free = free[: num_blocks_of[sequence]], free[num_blocks_of[sequence] :]
        first_key = max(0, seq_len - num_rows - sliding_window + 1) if sliding_window else 0
        for position in range(first_key, seq_len):
            block, offset = blocks[position // block_size], position % block_size
            key_cache[block, offset] = rng.standard_normal((num_kv_heads, head_dim))
            value_cache[block, offset] = rng.standard_normal((num_kv_heads, head_dim))
        if num_rows:
            first_block = first_key // block_size
            block_tables[sequence, first_block : len(blocks)] = blocks[first_block:]
    query_start = np.cumsum([0] + [num_rows for num_rows, _ in lengths], dtype=np.int32)
    return AttentionCase(
        query=rng.standard_normal((int(query_start[-1]), num_kv_heads * group, head_dim), dtype=np.float32),
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=block_tables,
        query_start=query_start,
        seq_lens=np.array([seq_len for _, seq_len in lengths], np.int32),
        scale=float(head_dim**-0.5),
        sliding_window=sliding_window,
    )


@st.composite
def attention_cases(draw: st.DrawFn, *, max_len: int = 200) -> AttentionCase:
    """Mixed decodes, chunks, whole prompts and idle sequences over random shapes."""
    lengths = []
    for _ in range(draw(st.integers(0, 4))):
        seq_len = draw(st.integers(1, max_len))
        num_rows = draw(st.sampled_from([1, 1, min(17, seq_len), seq_len, 0]))
        lengths.append((num_rows, seq_len))
    return make_attention_case(
        draw(st.integers(0, 2**32 - 1)),
        lengths=lengths,
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 3, 4, 5, 9])),
        head_dim=draw(st.sampled_from([1, 8, 16, 20, 64, 80, 96, 128, 256])),
        block_size=draw(st.sampled_from([1, 3, 16, 64, 100])),
        sliding_window=draw(st.sampled_from([0, 0, 1, 30, 64, 1000])),
    )
