"""The decoder of the Llama family. Knows nothing of checkpoints' files, of who schedules steps or samples tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from xllm_kernels import _C
from xllm_kernels.native.shape import DecoderShape

WeightFormat = Literal["auto", "bf16", "f32", "int8", "int4"]
ReadableBuffer: TypeAlias = Any
"""Anything with the buffer protocol: bytes, memoryview, a numpy array or memmap."""
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class LlamaDecoder:
    """Weights and key-value cache of one model. set_weight..., finish, allocate_kv_cache, then steps.

    Steps run on the pool of `xllm_kernels.set_num_threads` without the GIL; calls from several threads wait for each
    other. A token's logits depend on the token and on what its sequence holds before it alone: not on the other rows
    of a step, on how a prompt is cut into steps, on blocks or threads.
    """

    def __init__(
        self, shape: DecoderShape, cos_sin_cache: npt.NDArray[np.float32], weight_format: WeightFormat = "auto"
    ) -> None:
        """`cos_sin_cache`: [max_position, rotary_dim], cosines then sines; copied.

        `weight_format`: "auto" keeps each tensor as it is stored (scales of K-quants rounded to float16); "bf16" and
        "f32" round or widen all matrices; "int8" and "int4" quantise them in symmetric groups of 32, embeddings and head
        always to int8. Products with quantised matrices quantise their inputs to int8 in groups of 32; others take
        float32 inputs, or bfloat16 ones where matrix and CPU have that. Raises ValueError naming a field out of range.
        """
        settings = {field.name: getattr(shape, field.name) for field in fields(shape)}
        self._decoder = _C.LlamaDecoder(**settings, cos_sin_cache=cos_sin_cache, weight_format=weight_format)
        self._weight_format = weight_format
        self.shape = shape

    def set_weight(
        self, name: str, data: ReadableBuffer, kind: str, shape: Sequence[int], *, permuted_heads: int = 0
    ) -> None:
        """Repack one tensor on the pool; `data` is not needed afterwards.

        `name`: as in Hugging Face checkpoints, e.g. "model.layers.3.self_attn.q_proj.weight"; `data`: its contiguous
        bytes; `kind`: "F32", "F16", "BF16", and for matrices also "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K",
        "Q5_K", "Q6_K"; `shape`: as in the checkpoint, outputs first. `permuted_heads` > 0: the rows are in llama.cpp's
        order for interleaved rotary embedding of that many heads, and go back to the half-split order.
        "lm_head.weight" is ignored where it is tied. Raises ValueError naming the tensor for an unknown, repeated or
        misshapen one.
        """
        self._decoder.set_weight(name, data, kind, list(shape), permuted_heads)

    def finish(self) -> None:
        """End loading. Raises ValueError naming the tensors that are missing."""
        self._decoder.finish()

    @property
    def extension(self) -> _C.LlamaDecoder:
        """The object of the extension module, for other parts of this package."""
        return self._decoder

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of the packed weights, without the small copy of a large head that greedy steps look at first."""
        return self._decoder.num_weight_bytes()

    def save_packed(self, path: Path, key: str) -> None:
        """Write the packed weights to `path`, whole or not at all, for `load_packed` with the same `key`.

        `key` names what they were made from: whatever changes it makes the file useless. Raises OSError.
        """
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            self._decoder.save_packed(str(partial), self._full_key(key))
            partial.replace(path)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        finally:
            partial.unlink(missing_ok=True)

    def load_packed(self, path: Path, key: str) -> bool:
        """Take the weights from `path` instead of set_weight and finish; the same file serves every CPU.

        Return False, with nothing changed, where the file is missing, is cut, or was written by another version, for
        another key, shape or `weight_format`.
        """
        return self._decoder.load_packed(str(path), self._full_key(key))

    def _full_key(self, key: str) -> str:
        return f"{self.shape}\n{self._weight_format}\n{key}"

    def allocate_kv_cache(self, num_blocks: int, block_size: int, dtype: Literal["bf16", "f32"] = "bf16") -> None:
        """Replace the cache by `num_blocks` blocks of `block_size` tokens; memory is taken as blocks are first used.

        Raises ValueError for sizes below 1, MemoryError where there is no room.
        """
        self._decoder.allocate_kv_cache(num_blocks, block_size, dtype)

    @property
    def num_block_bytes(self) -> int:
        """Bytes of one block of the cache, all layers together."""
        return self._decoder.num_block_bytes()

    def read_blocks(self, blocks: Int32s) -> npt.NDArray[np.uint8]:
        """Return the contents of `blocks` [N], [N, num_block_bytes], for `write_blocks` of a decoder of the same shape.

        Raises ValueError for a block that the cache does not have; so do the other two.
        """
        contents = np.empty((len(blocks), self.num_block_bytes), np.uint8)
        self._decoder.read_blocks(blocks, contents)
        return contents

    def write_blocks(self, blocks: Int32s, contents: ReadableBuffer) -> None:
        """Replace the contents of `blocks` [N] by what `read_blocks` returned."""
        self._decoder.write_blocks(blocks, contents)

    def copy_blocks(self, pairs: Int32s) -> None:
        """Copy whole blocks: (from, to) of `pairs` [N, 2], one after the other."""
        self._decoder.copy_blocks(pairs)

    def forward(
        self,
        token_ids: Int32s,
        positions: Int32s,
        slot_mapping: Int64s,
        query_start: Int32s,
        seq_lens: Int32s,
        block_tables: Int32s,
        rows: Int64s,
    ) -> npt.NDArray[np.float32]:
        """Compute T new tokens of S sequences, one sequence after the other; return the logits [R, vocab] of `rows`.

        token_ids, positions: [T]; slot_mapping: [T], block * block_size + offset, negative for a token that is not
        kept; query_start: [S + 1] from 0 to T; seq_lens: [S], tokens in the cache with those of this step;
        block_tables: [S, B], of which only entries that a token needs are read; rows: [R], each in [0, T).
        Raises ValueError or TypeError naming what does not fit, before anything is computed.
        """
        logits = np.empty((len(rows), self.shape.vocab_size), np.float32)
        self._decoder.forward(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows, logits)
        return logits

    def hidden(
        self,
        token_ids: Int32s,
        positions: Int32s,
        slot_mapping: Int64s,
        query_start: Int32s,
        seq_lens: Int32s,
        block_tables: Int32s,
        rows: Int64s,
    ) -> npt.NDArray[np.float32]:
        """As `forward`, but return the hidden states [R, hidden] of `rows`, behind the last norm."""
        hidden = np.empty((len(rows), self.shape.hidden_size), np.float32)
        self._decoder.hidden(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows, hidden)
        return hidden

    def hidden_embedded(
        self,
        token_ids: Int32s,
        positions: Int32s,
        slot_mapping: Int64s,
        query_start: Int32s,
        seq_lens: Int32s,
        block_tables: Int32s,
        rows: Int64s,
        *,
        embedded: npt.NDArray[np.float32],
        embedded_rows: Int32s,
        angles: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """As `hidden`, with embeddings of some tokens given, as those of images are.

        embedded: [N, L, hidden], of which level 0 takes the place of a token's own embedding and level i is added after
        layer i - 1; embedded_rows: [T], rows of it, negative for other tokens. With `angles` [A, rotary_dim] (cosines,
        then sines) `positions` are rows of that instead of the decoder's table.
        """
        hidden = np.empty((len(rows), self.shape.hidden_size), np.float32)
        arrays = (token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows)
        self._decoder.hidden_embedded(*arrays, embedded, embedded_rows, angles, hidden)
        return hidden

    def logits(self, hidden: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the logits [R, vocab] of what `hidden` returned, [R, hidden]: those that `forward` gives."""
        logits = np.empty((len(hidden), self.shape.vocab_size), np.float32)
        self._decoder.logits(hidden, logits)
        return logits

    def greedy(
        self,
        token_ids: Int32s,
        positions: Int32s,
        slot_mapping: Int64s,
        query_start: Int32s,
        seq_lens: Int32s,
        block_tables: Int32s,
        rows: Int64s,
    ) -> Int32s:
        """As `forward`, but return the first most probable token of each of `rows`, [R].

        A row whose logits hold a NaN, or whose largest is infinite, gets -1.
        """
        chosen = np.empty(len(rows), np.int32)
        self._decoder.greedy(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows, chosen)
        return chosen
