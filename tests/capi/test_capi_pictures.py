"""Pictures in the messages of a C program: the tokens of Python and of transformers, and hostile ones refused."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from capi.building import PROGRAMS, TIMEOUT_S, Build

pytest.importorskip("PIL")

MODEL = "qwen3_vl"


def of_picture(url: str) -> str:
    """Return one line: the messages of a chat about the picture at `url`."""
    part = {"type": "image_url", "image_url": {"url": url}}
    return json.dumps([{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}])


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def test_pictures_in_messages(build: Build, tmp_path: Path, script_environment: dict[str, str]) -> None:
    from support.odd_images import bombs, encoded
    from support.vision_cases import CASES, answer, reference

    image = CASES[0].pictures[0]
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "picture.png").write_bytes(encoded(image, "PNG"))
    (tmp_path / "secret.png").write_bytes(encoded(image, "PNG"))
    well = [data_url(encoded(image, "PNG")), str(allowed / "picture.png"), f"file://{allowed}/picture.png"]
    hostile = {
        data_url(bombs()["PNG"]): "pixels",
        data_url(b"no picture"): "image",
        "data:image/png;base64,????": "base64",
        str(tmp_path / "secret.png"): "may read",
        f"{allowed}/../secret.png": "may read",
        "http://127.0.0.1/picture.png": "not public",
        "ftp://example.org/picture.png": "ftp",
    }
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "device": "cpu", "max_model_len": 1024}
    options |= {"allowed_media_path": str(allowed), "num_blocks": 256}
    done = subprocess.run(
        [build(PROGRAMS / "pictures.cpp"), reference(MODEL).folder, json.dumps(options)],
        input="\n".join(map(of_picture, [*well, *hostile, well[0]])) + "\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=script_environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    expected = answer(MODEL, CASES[0]).token_ids[:8]
    assert [[int(word) for word in line.split()] for line in (*lines[:3], lines[-2])] == [expected] * 4
    for line, (url, message) in zip(lines[3:-2], hostile.items(), strict=True):
        assert line.startswith("XLLM_ERROR_INVALID_REQUEST "), (url[:60], line)
        assert message in line.lower(), (url[:60], line)
    assert lines[-1] == "well"
