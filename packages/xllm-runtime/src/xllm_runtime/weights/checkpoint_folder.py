"""The weight files of a folder in Hugging Face layout: one safetensors file, or shards with an index. Knows no tensors."""

from __future__ import annotations

import json
from pathlib import Path

from xllm_framework.errors import ModelLoadError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLED_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def checkpoint_files(folder: Path) -> list[tuple[Path, list[str] | None]]:
    """Return the files in the order to read them, each with the tensors to take from it; None is all of them.

    Raises `ModelLoadError` naming what is missing or broken.
    """
    if (folder / INDEX_FILE).is_file():
        shards: dict[str, list[str]] = {}
        for name, file in _read_index(folder / INDEX_FILE).items():
            shards.setdefault(file, []).append(name)
        for file in shards:
            if not (folder / file).is_file():
                raise ModelLoadError(f"shard {folder / file} is missing, although {INDEX_FILE} lists it")
        return [(folder / file, names) for file, names in shards.items()]
    if (folder / SINGLE_FILE).is_file():
        return [(folder / SINGLE_FILE, None)]
    raise ModelLoadError(_explain_absence(folder))


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path} cannot be read as a checkpoint's index: {error!r}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelLoadError(
            f"{path} cannot be read as a checkpoint's index: weight_map is not an object of file names"
        )
    outside = [file for file in weight_map.values() if Path(file).name != file]
    if outside:
        raise ModelLoadError(f"{path} lists {outside[0]!r}, which is not a file of the same folder")
    return weight_map


def _explain_absence(folder: Path) -> str:
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        return f"{folder} has {others[0]}, but neither {SINGLE_FILE} nor {INDEX_FILE}"
    pickled = [file.name for pattern in PICKLED_PATTERNS for file in folder.glob(pattern)]
    if pickled:
        return f"{folder} has only pickled weights ({pickled[0]}), which are never loaded: convert them to safetensors"
    return f"{folder} has no weights: {SINGLE_FILE} or {INDEX_FILE} is missing"
