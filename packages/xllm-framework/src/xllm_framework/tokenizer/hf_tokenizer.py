"""Builds a tokenizer from a folder in Hugging Face layout. Knows nothing of weights or of GGUF.

tokenizer.json is the tokenizer; tokenizer_config.json says which tokens are special, and which a text gets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from xllm_framework.errors import ModelLoadError
from xllm_framework.model.json_file import read_json_object_if_there
from xllm_framework.tokenizer.tokenizer import Tokenizer


def load_hf_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of the model in `folder`.

    Raises:
        ModelLoadError: there is no tokenizer.json, or it is broken; names the file.
    """
    backend = _read_backend(folder)
    config = read_json_object_if_there(folder / "tokenizer_config.json")
    special_tokens_map = read_json_object_if_there(folder / "special_tokens_map.json")
    bos, eos = (token_content(config.get(name) or special_tokens_map.get(name)) for name in ("bos_token", "eos_token"))
    _add_listed_tokens(backend, config.get("added_tokens_decoder"))
    for token in (bos, eos):
        if token is not None and backend.token_to_id(token) is not None:
            backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False)])
    if "add_bos_token" in config or "add_eos_token" in config:
        _set_framing(
            backend,
            bos if config.get("add_bos_token") else None,
            eos if config.get("add_eos_token") else None,
        )
    eos_id = None if eos is None else backend.token_to_id(eos)
    return Tokenizer(backend, eos_token_ids=() if eos_id is None else (eos_id,))


def token_content(token: Any) -> str | None:
    """Return the text of a token as the configuration files write it: a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        found = next(
            (name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).is_file()), None
        )
        hint = (
            f"; {found} must be converted: load it with transformers' AutoTokenizer and save_pretrained it"
            if found
            else ""
        )
        raise ModelLoadError(f"Folder {folder} has no tokenizer.json{hint}.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelLoadError(f"{path} cannot be read as a tokenizer: {error}.") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _add_listed_tokens(backend: tokenizers.Tokenizer, listed: Any) -> None:
    """Add the tokens that only tokenizer_config.json lists, where their ids are free or theirs already."""
    if not isinstance(listed, dict):
        return
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for key, token in sorted(listed.items(), key=lambda item: int(item[0]) if item[0].isdecimal() else 0):
        content = token_content(token)
        if content is None or content in known or not key.isdecimal():
            continue
        if int(key) in (backend.token_to_id(content), backend.get_vocab_size(with_added_tokens=True)):
            options = {
                name: bool(token.get(name)) for name in ("special", "normalized", "lstrip", "rstrip", "single_word")
            }
            backend.add_tokens([tokenizers.AddedToken(content, **options)])


def _set_framing(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Have encoded texts begin with `bos` and end with `eos`, as explicit options of tokenizer_config.json want."""
    ids = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
    special_tokens = [(token, token_id) for token, token_id in ids.items() if token_id is not None]
    known = {token for token, _ in special_tokens}
    parts = [bos if bos in known else None, "$A", eos if eos in known else None]
    backend.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part is not None], special_tokens=special_tokens
    )
