"""The tokenizer of resolved model files, whatever their format. Knows nothing of how each is read."""

from __future__ import annotations

from xllm_framework.model.loading import open_gguf
from xllm_framework.model.source import ModelFiles
from xllm_framework.tokenizer.gguf_tokenizer import load_gguf_tokenizer
from xllm_framework.tokenizer.hf_tokenizer import load_hf_tokenizer
from xllm_framework.tokenizer.tokenizer import Tokenizer


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return the model's tokenizer.

    Raises:
        ModelLoadError: it is missing, broken or of an unknown kind; names the file.
    """
    return load_gguf_tokenizer(open_gguf(files.path)) if files.kind == "gguf" else load_hf_tokenizer(files.path)
