"""Opens the archive of an engine's KV blocks. Knows nothing of what is kept in it, or when."""

from __future__ import annotations

import hashlib
from pathlib import Path

from xllm_framework.config import KVCacheConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.model import ModelFiles
from xllm_runtime.memory.block_files import BlockFiles
from xllm_runtime.memory.file_archive import FileArchive
from xllm_runtime.weights.cache_place import CachePlace
from xllm_runtime.weights.checkpoint_folder import checkpoint_files
from xllm_runtime.worker import WorkerClient

LAYOUT_VERSION = 1
"""Raised when the same model would compute or lay out other KV."""


def open_archive(config: KVCacheConfig, files: ModelFiles, clients: list[WorkerClient]) -> FileArchive | None:
    """Return the archive that `config` asks for, fed by all `clients`; None without one.

    Raises:
        InvalidConfig: the workers cannot read their blocks, the prefix cache is off, or the folder cannot be used.
    """
    if not config.archive_path:
        return None
    if not config.enable_prefix_cache:
        raise InvalidConfig("archive_path needs enable_prefix_cache: blocks are kept by the prefix cache's keys.")
    first = clients[0]
    num_bytes = first.payload_bytes()
    if num_bytes == 0:
        raise InvalidConfig(f"archive_path must be empty: model_impl {first.model_impl} cannot read its blocks.")
    label = f"{first.model_impl} {first.dtype} {first.device.split(':')[0]} {config.block_size} {num_bytes}"
    if len(first.cache_layout.sliding_windows) > 1:
        label += f" {first.cache_layout.sliding_windows}"
    fingerprint = hashlib.blake2b(f"{_model_fingerprint(files)} {label}".encode(), digest_size=32).digest()
    folder = Path(config.archive_path).expanduser()
    archive = FileArchive(BlockFiles(folder, fingerprint, num_bytes, config.max_archive_size), num_bytes)
    for client in clients:
        client.attach_archive(archive.put)
    return archive


def _model_fingerprint(files: ModelFiles) -> str:
    sources = [files.path] if files.kind == "gguf" else [path for path, _ in checkpoint_files(files.path)]
    return CachePlace(files.path, sources, "archive", "", LAYOUT_VERSION, "").fingerprint
