"""Embeddings in place of tokens through the library: the same paths as in Python, and every wrong field named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from capi.building import PROGRAMS, TIMEOUT_S, Build
from xllm_capi.messages import Paths, Search, Tensor
from xllm_capi.searching import SearchCall
from xllm_framework.request.rec_messages import (
    DECODER_CONTEXT,
    INPUT_EMBEDDING,
    INPUT_INDICES,
    INPUT_TOKENS,
    SPARSE_EMBEDDING,
    InputTensor,
)

HISTORY = list(range(65, 73))
OPTIONS = {"backend": "rec", "device": "cpu", "dtype": "float32", "threads": 1}


def embeddings(hidden: int) -> np.ndarray:
    """Four rows that float16 and bfloat16 hold exactly."""
    return (np.random.default_rng(0).integers(-255, 256, (4, hidden)) / 64).astype("<f4")


def floats(name: str, rows: np.ndarray) -> InputTensor:
    return InputTensor(name, "float32", rows.shape, rows.tobytes())


def integers(name: str, values: list[int]) -> InputTensor:
    return InputTensor(name, "int64", (len(values),), np.array(values, "<i8").tobytes())


def searched(recommender, prompt: list[int] | None, *tensors: InputTensor) -> list[tuple[list[int], float]]:
    master, done = recommender.master, []
    master.submit(master.prepare_search(prompt, master.search_params(beam_width=16), tensors=tensors), done.append)
    assert master._dispatcher.wait_until_idle(60)
    assert done[0].error is None
    return [(path.token_ids, path.score) for path in done[0].paths]


def run_program(
    program: Path, folder: Path, kind: str, hidden: int, environment: dict[str, str]
) -> dict[str, list[tuple[list[int], float]]]:
    """Return the paths that the program prints, by way in."""
    environment = {**environment, "XLLM_DTYPE": "float32", "XLLM_MODEL_IMPL": "python", "XLLM_DEVICE": "cpu"}
    done = subprocess.run(
        [program, folder, kind, str(hidden)],
        input=embeddings(hidden).tobytes(),
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = {}
    for line in done.stdout.decode().splitlines():
        title, *paths = line.split()
        parts = [path.split(",") for path in paths]
        found[title] = [([int(token) for token in part[:-1]], float(part[-1])) for part in parts]
    return found


def check_equal(found: list[tuple[list[int], float]], expected: list[tuple[list[int], float]]) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_tensors_of_an_encoder_decoder(build: Build, tmp_path: Path, script_environment: dict[str, str]) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    from support.rec_models import write_catalogue
    from xllm_runtime.recommender import Recommender

    sizes = {"vocab_size": 260, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=1))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["OneRecForConditionalGeneration"]}))
    write_catalogue(tmp_path)
    rows = embeddings(32)
    with Recommender(str(tmp_path), **OPTIONS) as recommender:
        sparse, context = floats(SPARSE_EMBEDDING, rows), floats(DECODER_CONTEXT, rows)
        expected = {
            "sparse": searched(recommender, None, sparse),
            "both": searched(recommender, None, sparse, context),
            "context": searched(recommender, HISTORY[:3], context),
        }
    found = run_program(build(PROGRAMS / "tensors.cpp"), tmp_path, "encoder", 32, script_environment)
    assert found.keys() == expected.keys()
    for title, paths in expected.items():
        check_equal(found[title], paths)


def test_items_and_dictionaries_of_the_earlier_names_under_sanitizers(
    build_sanitized: Build, tmp_path: Path, script_environment: dict[str, str]
) -> None:
    from support.rec_models import write_catalogue
    from support.tiny_checkpoints import tiny_checkpoint
    from xllm_runtime.recommender import Recommender

    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("qwen3"), folder)
    write_catalogue(folder)
    rows = embeddings(64)
    with Recommender(str(folder), model_impl="python", **OPTIONS) as recommender:
        tokens, places = integers(INPUT_TOKENS, HISTORY), integers(INPUT_INDICES, [5, 6, 0, 1])
        expected = searched(recommender, None, tokens, places, floats(INPUT_EMBEDDING, rows))
    environment = {**script_environment, "XLLM_PYTHON": sys.executable}
    found = run_program(build_sanitized(PROGRAMS / "tensors.cpp"), folder, "language", 64, environment)
    assert list(found) == ["items", "dictionary", "again"]
    for paths in found.values():
        check_equal(paths, expected)


@pytest.mark.parametrize(
    ("shape", "size"), [((), 4), ((0,), 0), ((-1,), 4), ((2, 3), 20), ((1 << 40, 1 << 40), 4)], ids=str
)
def test_shapes_of_messages_are_not_trusted(shape: tuple[int, ...], size: int) -> None:
    class Recommender:
        backend = "rec"

        def search_params(self, **given: object) -> object:
            return given

        def prepare_search(self, prompt: object, params: object, **options: object) -> object:
            raise AssertionError("A wrong tensor has come through.")

    answers: list[Paths] = []
    tensor = Tensor("sparse_embedding", "float32", shape, bytes(size))
    search = Search(5, None, None, None, {}, None, None, 0, "", [tensor])
    SearchCall(Recommender(), search, answers.append).run()
    assert answers[0].kind == "invalid_request"
    assert "sparse_embedding has" in (answers[0].message or "")
    assert answers[0].paths == []
