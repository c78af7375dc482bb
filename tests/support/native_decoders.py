"""Builds native decoders from checkpoints and runs them by hand over a paged cache, in any chunks and mixes.

Knows nothing of scheduling, nor of how the engine loads a model: the test says what goes into which step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from support.loaded_models import model_files
from xllm_framework.model import ModelArgs, load_model_args
from xllm_kernels.native import DecoderShape, LlamaDecoder
from xllm_runtime.layers.rope_frequencies import cos_sin_table, max_rotary_position
from xllm_runtime.weights import load_weights

Step = tuple[Any, ...]
KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def decoder_shape(args: ModelArgs) -> DecoderShape:
    """Return the shape of a model."""
    windows = [args.sliding_window or 0 if i in args.sliding_window_layers else 0 for i in range(args.num_layers)]
    return DecoderShape(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_layers=args.num_layers,
        num_heads=args.num_heads,
        num_kv_heads=args.num_kv_heads,
        head_dim=args.head_dim,
        rotary_dim=args.head_dim,
        rms_norm_eps=args.rms_norm_eps,
        has_tied_embeddings=args.has_tied_embeddings,
        has_qkv_bias=args.has_qkv_bias,
        has_output_bias=args.has_output_bias,
        has_mlp_bias=args.has_mlp_bias,
        has_qk_norm=args.has_qk_norm,
        sliding_windows=windows,
    )


def tensor_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return a view of a tensor's bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def load_decoder(
    folder: Path,
    weight_format: Any = "auto",
    dtype: torch.dtype = torch.float32,
    *,
    change: Callable[[str, torch.Tensor], tuple[torch.Tensor, int]] = lambda name, tensor: (tensor, 0),
    broken: Mapping[str, float] | None = None,
    packed: tuple[Path, str] | None = None,
) -> LlamaDecoder:
    """Return the decoder of a folder in Hugging Face layout, its tensors cast to `dtype` first; without a cache.

    `change` may replace a tensor and say how many heads it is permuted for, `broken` fills tensors with one number,
    and `packed` names the file and key to load from instead.
    """
    files = model_files(folder)
    args = load_model_args(files)
    decoder = LlamaDecoder(decoder_shape(args), cos_sin_table(args, max_rotary_position(args)), weight_format)
    if packed is not None:
        assert decoder.load_packed(*packed)
        return decoder
    for name, stored in load_weights(files, args, torch.float32):
        tensor, heads = change(name, stored.to(dtype))
        if broken and name in broken:
            tensor = torch.full_like(tensor, broken[name])
        decoder.set_weight(name, tensor_bytes(tensor), KINDS[dtype], tuple(tensor.shape), permuted_heads=heads)
    decoder.finish()
    return decoder


class NativeRunner:
    """Sequences 0, 1, ... with their own blocks, dealt in an order that leaves no sequence contiguous."""

    def __init__(
        self, decoder: LlamaDecoder, *, num_blocks: int = 160, block_size: int = 16, dtype: Any = "f32"
    ) -> None:
        self.decoder = decoder
        self._block_size = block_size
        self._free = [block for start in (1, 2) for block in range(start, num_blocks, 2)]
        self._blocks: dict[int, list[int]] = {}
        self._tokens: dict[int, list[int]] = {}
        decoder.allocate_kv_cache(num_blocks, block_size, dtype)

    def step_arrays(self, batch: Sequence[tuple[int, Sequence[int]]]) -> dict[str, npt.NDArray[Any]]:
        """Take (sequence, its next tokens) pairs in; return the arguments of the step, with all rows wanted."""
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
        return {
            "token_ids": np.array(token_ids, np.int32),
            "positions": np.array(positions, np.int32),
            "slot_mapping": np.array(slots, np.int64),
            "query_start": np.array(query_start, np.int32),
            "seq_lens": np.array(seq_lens, np.int32),
            "block_tables": np.array([row + [-1] * (width - len(row)) for row in tables], np.int32),
            "rows": np.arange(len(token_ids), dtype=np.int64),
        }

    def step(self, batch: Sequence[tuple[int, Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Feed (sequence, its next tokens) pairs in one step; return the logits [tokens, vocab] of each."""
        logits = self.decoder.forward(**self.step_arrays(batch))
        return np.split(logits, np.cumsum([len(new) for _, new in batch])[:-1])

    def greedy(self, batch: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
        """Feed the same; return the most probable token after the last of each."""
        arrays = self.step_arrays(batch)
        arrays["rows"] = arrays["query_start"][1:].astype(np.int64) - 1
        return self.decoder.greedy(**arrays).tolist()

    def run_chunked(self, sequence: int, tokens: Sequence[int], chunk: int) -> npt.NDArray[np.float32]:
        """Feed `tokens` of one sequence alone, `chunk` at a time; return the logits of all."""
        chunks = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
        return np.concatenate([self.step([(sequence, part)])[0] for part in chunks])

    def _slot(self, sequence: int, position: int) -> int:
        blocks = self._blocks.setdefault(sequence, [])
        if position // self._block_size == len(blocks):
            blocks.append(self._free.pop(0))
        return blocks[position // self._block_size] * self._block_size + position % self._block_size
