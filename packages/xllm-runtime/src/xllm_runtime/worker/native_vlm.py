"""One rank of a model that sees on the CPU: its language part in C++, its vision tower in torch.

What may not be added here: see `worker.native`; how a tower computes (`models.vlm`), what of it is kept (`media_encoder`).
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.batch.media_rows import MediaRows
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.auto_config import max_model_len
from xllm_runtime.layers.multimodal_rotary import axes_of
from xllm_runtime.models.native import native_language_args, rotary_table
from xllm_runtime.platform import select_platform
from xllm_runtime.processors.normalisations import load_normalisations
from xllm_runtime.worker.loading import select_dtype
from xllm_runtime.worker.media_encoder import MediaEncoder
from xllm_runtime.worker.native import NativeWorker, step_arrays
from xllm_runtime.worker.tower_loading import load_tower

_LANGUAGE, _TOWERS = "model.language_model.", ("visual.", "model.visual.")
"""With which newer checkpoints' names of the language part begin, and all checkpoints' names of the tower."""


class NativeVLMWorker(NativeWorker):
    """See `Worker` for what each method promises; only for models whose `native_language_args` are known.

    Raises:
        InvalidConfig: an option cannot be met on this machine.
        ModelLoadError: the model cannot be loaded.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        language = native_language_args(args)
        if language is None:
            raise ModelLoadError(f"the language part of {args.architecture} is not known")
        super().__init__(config, files, language)
        platform = select_platform("cpu")
        platform.set_threads(config.execution.threads)
        dtype = select_dtype(config.model, args, platform)
        tower = load_tower(config, files, args, dtype, platform.device)
        limit = config.multimodal.max_encoder_cache_size
        normalisations = load_normalisations(files, args)
        self.encoder = MediaEncoder(tower, normalisations, dtype, platform.device, limit)
        self._num_levels = tower.num_levels
        self._table = rotary_table(args, max_model_len(config, args, sys.maxsize))
        self._axes = axes_of(args, self._table.shape[1] // 2).numpy()

    @staticmethod
    def language_name(name: str) -> str | None:
        """See `NativeWorker.language_name`."""
        if name.startswith(_TOWERS):
            return None
        return f"model.{name.removeprefix(_LANGUAGE)}" if name.startswith(_LANGUAGE) else name

    @torch.inference_mode()
    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """See `NativeWorker.execute`; says also how many media were encoded."""
        num_encoded, num_found = self.encoder.num_encoded, self.encoder.num_found
        output = self._execute_media(forward_input)
        output.num_encoded_media = self.encoder.num_encoded - num_encoded
        output.num_cached_media = self.encoder.num_found - num_found
        return output

    def _execute_media(self, forward_input: ForwardInput) -> ForwardOutput:
        wanted = [rows for rows in forward_input.pooled if rows.items]
        others = [rows for rows in forward_input.pooled if not rows.items]
        rest = dataclasses.replace(forward_input, pooled=others) if wanted else forward_input
        if wanted and len(wanted) == forward_input.num_sequences:
            output = ForwardOutput(np.zeros(0, np.int32))
        elif forward_input.media is None:
            output = super().execute(rest)
        else:
            self._copy_blocks(rest)
            output = self._execute_with_hidden(rest)
        if wanted:
            output.pooled = {**(output.pooled or {}), **{rows.index: self.encoder.flat(rows.items) for rows in wanted}}
        return output

    def _hidden(self, forward_input: ForwardInput, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """See `NativeWorker._hidden`."""
        media = forward_input.media
        if media is None:
            return super()._hidden(forward_input, rows)
        arrays, angles = step_arrays(forward_input), None
        if media.rotary_positions is not None:
            angles = self._angles(media.rotary_positions)
            arrays = arrays._replace(positions=np.arange(len(angles), dtype=np.int32))
        embedded, embedded_rows = self._embedded(media, len(forward_input.token_ids))
        return self._decoder.hidden_embedded(
            *arrays, rows, embedded=embedded, embedded_rows=embedded_rows, angles=angles
        )

    def _embedded(self, media: MediaRows, num_tokens: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Return (embeddings [N, levels, hidden] of the step's media, the row of each token or -1)."""
        found = self.encoder([item for item, *_ in media.pieces]) if media.pieces else {}
        parts = [found[item.content_hash][first : first + count] for item, first, _, count in media.pieces]
        rows = np.full(num_tokens, -1, np.int32)
        num_rows = 0
        for _, _, row, count in media.pieces:
            rows[row : row + count] = np.arange(num_rows, num_rows + count)
            num_rows += count
        values: Any = torch.cat(parts).float().numpy() if parts else np.zeros(0, np.float32)
        return values.reshape(num_rows, self._num_levels, self._args.hidden_size), rows

    def _angles(self, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Return [T, rotary_dim] of positions [3, T]: each frequency turns by the position on its axis."""
        rows = np.minimum(positions[self._axes].T, len(self._table) - 1)
        halves = (np.take_along_axis(half, rows, 0) for half in np.split(self._table, 2, 1))
        return np.ascontiguousarray(np.concatenate(list(halves), 1))
