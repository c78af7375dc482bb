"""Reads the small JSON files that lie beside a model's weights. Knows nothing of what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xllm_framework.errors import ModelLoadError


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        ModelLoadError: the file cannot be read or holds no JSON object; names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} must hold a JSON object.")
    return content


def read_json_object_if_there(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, or {} when there is no such file; otherwise as `read_json_object`."""
    return read_json_object(path) if path.is_file() else {}
