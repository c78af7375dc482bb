"""Keeps weights packed for the C++ decoder on disk, so that only the first start packs them. Knows nothing of formats.

Not being able to keep a copy is never an error.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from xllm_framework.model import ModelFiles
from xllm_kernels.native import LlamaDecoder
from xllm_runtime.weights.cache_place import CachePlace
from xllm_runtime.weights.checkpoint_folder import checkpoint_files

LAYOUT_VERSION = 1
"""Raised when the same checkpoint would be read differently; how weights are packed, xllm-kernels checks itself."""
MIN_BYTES = 2**25
"""Smaller models are packed faster than a copy is found."""

logger = logging.getLogger(__name__)


class PackedCopy:
    """The copy of one checkpoint in one weight format: first `load`; if that returns False, fill the decoder and `save`."""

    def __init__(self, files: ModelFiles, weight_format: str, cache_dir: str) -> None:
        sources = _source_files(files)
        self._is_kept = sum(path.stat().st_size for path in sources) >= MIN_BYTES
        self._place = CachePlace(files.path, sources, "packed", weight_format, LAYOUT_VERSION, cache_dir)

    def load(self, decoder: LlamaDecoder) -> bool:
        """Fill `decoder` from the copy; False, with nothing changed, when there is none that fits."""
        return self._is_kept and decoder.load_packed(self._place.path, self._place.fingerprint)

    def save(self, decoder: LlamaDecoder) -> None:
        """Write the copy; in the background, as nobody waits for it."""
        if self._is_kept:
            threading.Thread(target=self._save, args=(decoder,), name="xllm-packed-copy", daemon=True).start()

    def _save(self, decoder: LlamaDecoder) -> None:
        try:
            self._place.folder.mkdir(parents=True, exist_ok=True)
            decoder.save_packed(self._place.path, self._place.fingerprint)
            self._place.remove_old()
        except OSError as error:
            logger.debug("No packed copy was kept: %s.", error)


def _source_files(files: ModelFiles) -> list[Path]:
    return [files.path] if files.kind == "gguf" else [path for path, _ in checkpoint_files(files.path)]
