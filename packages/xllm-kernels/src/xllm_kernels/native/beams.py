"""Beams on the native decoder: steps of many rows over one prompt each. Knows nothing of how beams are chosen."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from xllm_kernels import _C
from xllm_kernels.native.decoder import Int32s, LlamaDecoder


class NativeBeams:
    """The keys and values that the beams of one search add, and the steps over them.

    For `num_rounds` rounds of up to `num_rows` rows; `dtype` is that of the decoder's cache. Not for two searches at once,
    but several may share a decoder, on several threads. Raises ValueError for sizes below 1, MemoryError without room.
    """

    def __init__(
        self, decoder: LlamaDecoder, num_rounds: int, num_rows: int, dtype: Literal["bf16", "f32"] = "bf16"
    ) -> None:
        self._decoder = decoder
        self._beams = _C.BeamCache(decoder.extension, num_rounds, num_rows, dtype)

    def forward(
        self,
        round_index: int,
        token_ids: Int32s,
        positions: Int32s,
        query_start: Int32s,
        prompt_lens: Int32s,
        block_tables: Int32s,
        ancestors: Int32s,
    ) -> npt.NDArray[np.float32]:
        """Compute one token of every beam, keep its KV as that of round `round_index`, return logits [W, vocab].

        token_ids, positions: [W], the beams of request s in rows [query_start[s], query_start[s + 1]); prompt_lens: [S],
        tokens in the paged cache; block_tables: [S, B]; ancestors: [W, round_index + 1], which row of each round a beam
        continues, its own row in this one. Raises ValueError or TypeError naming what does not fit.
        """
        logits = np.empty((len(token_ids), self._decoder.shape.vocab_size), np.float32)
        _C.forward_beams(
            self._decoder.extension,
            self._beams,
            round_index,
            token_ids,
            positions,
            query_start,
            prompt_lens,
            block_tables,
            ancestors,
            logits,
        )
        return logits
