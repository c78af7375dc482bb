"""Tries a way of serving a transformers model: are its logits those of the model's plain forward?

A trial says more than any list of architectures: it covers masks, positions, caches and heads of a model that nobody
here has seen. Knows nothing of the ways themselves.
"""

from __future__ import annotations

from typing import Any

import torch

from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.models.interface import CausalLM

BLOCK_SIZE = 4
STEPS = (((0, 7),), ((1, 5), (0, 4)), ((0, 1), (1, 1)))
"""(sequence, new tokens) of each step: a prefill, a mixed batch, a decode."""
NUM_TOKENS = 12
TOLERANCES = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Of the largest logit; far above rounding, far below what a wrong mask or position does."""


class Trial:
    """Two short random sequences and the logits that `model`, a transformers model, computes for them by itself."""

    @torch.inference_mode()
    def __init__(self, model: Any, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(0, vocab_size, (2, NUM_TOKENS), generator=generator).to(model.device)
        rows = [model(input_ids=row[None], use_cache=False).logits[0] for row in self._tokens]
        self._expected = torch.stack(rows).float()
        self._limit = float(TOLERANCES[model.dtype] * self._expected.abs().max())

    @torch.inference_mode()
    def difference(self, served: CausalLM) -> str:
        """Return how the logits of `served` differ, "" when they do not; binds a small KV cache of its own."""
        _bind_small_cache(served, self._tokens.device)
        lengths = [0, 0]
        for step in STEPS:
            actual = _run_step(served, self._tokens, lengths, step)
            wanted = torch.cat([self._expected[row, lengths[row] - count : lengths[row]] for row, count in step])
            error = float((actual - wanted).abs().max())
            if not error <= self._limit:
                return f"logits differ by {error:.2g} from the plain forward's"
        return ""


def _bind_small_cache(served: CausalLM, device: torch.device) -> None:
    num_blocks = 1 + 2 * -(-NUM_TOKENS // BLOCK_SIZE)
    caches = []
    for shape in served.kv_cache_shapes():
        size = (num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        caches.append(tuple(torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(2)))
    served.bind_kv_cache(caches)  # type: ignore[arg-type]


def _run_step(
    served: CausalLM, tokens: torch.Tensor, lengths: list[int], step: tuple[tuple[int, int], ...]
) -> torch.Tensor:
    """Run the next tokens of `step`, advancing `lengths`; return their logits."""
    width = -(-NUM_TOKENS // BLOCK_SIZE)
    positions = [torch.arange(lengths[row], lengths[row] + count) for row, count in step]
    for row, count in step:
        lengths[row] += count
    tables = torch.tensor([[1 + width * row + block for block in range(width)] for row, _ in step])
    slots = [
        table[where // BLOCK_SIZE] * BLOCK_SIZE + where % BLOCK_SIZE
        for table, where in zip(tables, positions, strict=True)
    ]
    counts = torch.tensor([0, *(count for _, count in step)])
    metadata = AttentionMetadata(
        slot_mapping=torch.cat(slots).to(tokens.device),
        block_tables=tables.int().to(tokens.device),
        query_start=counts.cumsum(0).int().to(tokens.device),
        seq_lens=torch.tensor([lengths[row] for row, _ in step], dtype=torch.int32, device=tokens.device),
        max_query_len=max(count for _, count in step),
    )
    token_ids = torch.cat([tokens[row, where] for (row, _), where in zip(step, positions, strict=True)])
    hidden = served.forward(token_ids, torch.cat(positions).to(tokens.device), metadata)
    return served.compute_logits(hidden)
