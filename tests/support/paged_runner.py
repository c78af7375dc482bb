"""Runs a `CausalLM` by hand over a paged cache, in any chunks and mixes, and returns the logits of every token.

Knows nothing of scheduling: the test says which tokens of which sequence go into which step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.models.interface import CausalLM


class PagedRunner:
    """Sequences 0, 1, ... with their own blocks, dealt in an order that leaves no sequence contiguous."""

    def __init__(self, model: CausalLM, *, num_blocks: int = 160, block_size: int = 16) -> None:
        self._model = model
        self._block_size = block_size
        self._free = [block for start in (1, 2) for block in range(start, num_blocks, 2)]
        self._blocks: dict[int, list[int]] = {}
        self._tokens: dict[int, list[int]] = {}
        model.bind_kv_cache(
            [
                tuple(torch.zeros(num_blocks, block_size, s.num_kv_heads, s.head_dim, dtype=s.dtype) for _ in "kv")
                for s in model.kv_cache_shapes()
            ]
        )

    def step(self, batch: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Feed (sequence, its next tokens) pairs in one forward; return float32 logits [tokens, vocab] of each."""
        token_ids, positions, slots, query_start, seq_lens = [], [], [], [0], []
        for sequence, new in batch:
            known = self._tokens.setdefault(sequence, [])
            for token in new:
                positions.append(len(known))
                slots.append(self._slot(sequence, len(known)))
                known.append(token)
            token_ids += new
            query_start.append(len(token_ids))
            seq_lens.append(len(known))
        tables = [self._blocks[sequence] for sequence, _ in batch]
        width = max(map(len, tables))
        metadata = AttentionMetadata(
            slot_mapping=torch.tensor(slots),
            block_tables=torch.tensor([row + [0] * (width - len(row)) for row in tables], dtype=torch.int32),
            query_start=torch.tensor(query_start, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            max_query_len=max(len(new) for _, new in batch),
        )
        with torch.inference_mode():
            hidden = self._model.forward(torch.tensor(token_ids), torch.tensor(positions), metadata)
            logits = self._model.compute_logits(hidden)
        return list(logits.split([len(new) for _, new in batch]))

    def run_chunked(self, sequence: int, tokens: Sequence[int], chunk: int) -> torch.Tensor:
        """Feed `tokens` of one sequence alone, `chunk` at a time; return the logits of all."""
        chunks = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
        return torch.cat([self.step([(sequence, part)])[0] for part in chunks])

    def _slot(self, sequence: int, position: int) -> int:
        blocks = self._blocks.setdefault(sequence, [])
        if position // self._block_size == len(blocks):
            blocks.append(self._free.pop(0))
        return blocks[position // self._block_size] * self._block_size + position % self._block_size
