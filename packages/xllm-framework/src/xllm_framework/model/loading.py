"""`ModelArgs` of resolved model files, whatever their format. Knows nothing of weights."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from xllm_framework.model.gguf_config import load_gguf_args
from xllm_framework.model.gguf_file import GGUFFile
from xllm_framework.model.hf_config import load_hf_args
from xllm_framework.model.model_args import ModelArgs
from xllm_framework.model.source import ModelFiles


def load_model_args(files: ModelFiles) -> ModelArgs:
    """Return the model's arguments.

    Raises:
        ModelLoadError: a configuration is missing, broken or incomplete; names the file and the field.
        UnsupportedModel: a GGUF architecture that is not known here.
    """
    return load_gguf_args(open_gguf(files.path)) if files.kind == "gguf" else load_hf_args(files.path)


def open_gguf(path: Path) -> GGUFFile:
    """Return the file, read once for all who need it during a start (arguments, tokenizer, template, weights)."""
    status = path.stat()
    return _open_version(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _open_version(path: Path, mtime_ns: int, size: int) -> GGUFFile:
    return GGUFFile(path)
