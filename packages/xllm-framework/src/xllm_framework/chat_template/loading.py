"""Finds a model's chat template and the special tokens it names. Knows nothing of how templates are rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from xllm_framework.chat_template.template import DEFAULT_NAME, ChatTemplate
from xllm_framework.errors import InvalidConfig, ModelLoadError
from xllm_framework.model.json_file import read_json_object_if_there
from xllm_framework.model.loading import open_gguf
from xllm_framework.model.source import ModelFiles

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_GGUF_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def load_chat_template(files: ModelFiles, override_path: str = "") -> ChatTemplate | None:
    """Return the template in the file `override_path`, else the model's own, else None.

    Raises:
        InvalidConfig: the operator's file cannot be read or is no Jinja.
        ModelLoadError: the model's template is no Jinja; names where it is.
    """
    if files.kind == "gguf":
        metadata = open_gguf(files.path).metadata
        special_tokens = _gguf_special_tokens(metadata)
    else:
        tokenizer_config = read_json_object_if_there(files.path / "tokenizer_config.json")
        special_tokens_map = read_json_object_if_there(files.path / "special_tokens_map.json")
        special_tokens = _special_tokens({**special_tokens_map, **tokenizer_config})
    if override_path:
        return _operators_template(Path(override_path).expanduser(), special_tokens)
    templates = _gguf_templates(metadata) if files.kind == "gguf" else _folder_templates(files.path, tokenizer_config)
    if not templates:
        return None
    templates.setdefault(DEFAULT_NAME, next(iter(templates.values())))
    try:
        return ChatTemplate(templates, special_tokens)
    except jinja2.TemplateSyntaxError as error:
        raise ModelLoadError(f"The chat template of {files.path} is broken in line {error.lineno}: {error}.") from error


def _operators_template(path: Path, special_tokens: dict[str, str]) -> ChatTemplate:
    try:
        source = path.read_text(encoding="utf-8")
        return ChatTemplate({DEFAULT_NAME: source}, special_tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"The chat_template file {path} cannot be read: {error}.") from error
    except jinja2.TemplateSyntaxError as error:
        raise InvalidConfig(f"The chat_template file {path} is broken in line {error.lineno}: {error}.") from error


def _folder_templates(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Return templates by name: those in files of their own go before tokenizer_config.json's."""
    templates = _named_templates(tokenizer_config.get("chat_template"))
    templates.update(_named_templates(read_json_object_if_there(folder / "chat_template.json").get("chat_template")))
    files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files[DEFAULT_NAME] = folder / "chat_template.jinja"
    for name, file in files.items():
        try:
            templates[name] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{file} cannot be read: {error}.") from error
    return templates


def _named_templates(value: Any) -> dict[str, str]:
    """Return the templates of a field that holds one template, or a list of objects with name and template."""
    if isinstance(value, str):
        return {DEFAULT_NAME: value}
    named = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return {
        item["name"]: item["template"]
        for item in named
        if isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
    }


def _gguf_templates(metadata: dict[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    values = {key.removeprefix(prefix).lstrip("."): value for key, value in metadata.items() if key.startswith(prefix)}
    return {name or DEFAULT_NAME: value for name, value in values.items() if isinstance(value, str) and name != "s"}


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    contents = {name: config.get(name) for name in SPECIAL_TOKEN_NAMES}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in contents.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _gguf_special_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    ids = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in _GGUF_TOKEN_KEYS.items()}
    return {name: tokens[index] for name, index in ids.items() if isinstance(index, int) and 0 <= index < len(tokens)}
