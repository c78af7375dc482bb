"""How an embedding model turns hidden states into one vector, as its folder says. Knows nothing of how they are computed.

The layout is that of sentence-transformers: `modules.json` lists a Transformer, a Pooling and often a Normalize module, and
the Pooling module's folder has a config.json. A model without it is pooled as most decoder models are: the last token's
hidden state, normalised.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xllm_framework.config import ModelConfig
from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model.json_file import read_json_object
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.pooling_params import PoolingKind

MODULES_FILE = "modules.json"
_KINDS: dict[str, PoolingKind] = {
    "lasttoken": "last",
    "mean_tokens": "mean",
    "cls_token": "cls",
    "mean": "mean",
    "cls": "cls",
}
_SERVED_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class PoolingSettings:
    """How a model's embeddings are made unless a request or an option says otherwise."""

    kind: PoolingKind = "last"
    is_normalized: bool = True
    """Whether a vector is divided by its Euclidean length at the end."""


DEFAULT_POOLING = PoolingSettings()


def is_embedding_model(folder: Path) -> bool:
    """Whether a folder holds a sentence-transformers model that pools, whatever its config.json calls it."""
    return any(kind == "Pooling" for kind, _ in _modules(folder))


def load_pooling(files: ModelFiles, config: ModelConfig) -> PoolingSettings:
    """Return what the files ask for, or what `config.pooling` says instead.

    Raises:
        ModelLoadError: a file is broken; names it.
        UnsupportedModel: they ask for something else than the last, first or mean hidden state, normalised or not.
    """
    modules = _modules(files.path) if files.kind == "hf" else []
    if not any(kind == "Pooling" for kind, _ in modules):
        return PoolingSettings("last" if config.pooling == "auto" else config.pooling)
    unknown = [kind for kind, _ in modules if kind not in _SERVED_MODULES]
    if unknown:
        raise UnsupportedModel(f"{files.path / MODULES_FILE} asks for a module {unknown[0]!r}, which is not served.")
    folder = next(path for kind, path in modules if kind == "Pooling")
    is_normalized = any(kind == "Normalize" for kind, _ in modules)
    kind = _kind(files.path / folder / "config.json") if config.pooling == "auto" else config.pooling
    return PoolingSettings(kind, is_normalized)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return (class name, subfolder) of each module; none without the file."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return []
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path} does not list modules with type and path: {error}.") from error


def _kind(path: Path) -> PoolingKind:
    config = read_json_object(path)
    named = config.get("pooling_mode")
    modes = [name.removeprefix("pooling_mode_") for name, value in config.items() if value is True and "_mode_" in name]
    if isinstance(named, str):
        modes = [named]
    if len(modes) != 1 or modes[0] not in _KINDS:
        raise UnsupportedModel(
            f"{path} asks for pooling by {' and '.join(modes) or 'nothing'}; lasttoken, mean or cls are served."
        )
    return _KINDS[modes[0]]
