"""The task mm_embed: a tower without its language model encodes as the whole model does, and everything else is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.asgi import Answer, call
from support.odd_images import encoded
from support.quantised_checkpoints import quantised_pair
from support.video_clips import clip
from support.vision_cases import CASES, answer, reference
from xllm_framework.config import LoadConfig, ModelConfig, ServiceConfig
from xllm_framework.errors import InvalidRequest, UnsupportedModel
from xllm_framework.model.source import resolve_model
from xllm_runtime.backend import choose_backend
from xllm_runtime.llm import LLM
from xllm_runtime.weights.safetensors_file import SafetensorsFile
from xllm_server.app import build_app
from xllm_server.state import ServerState

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "llava_onevision")
CASE = CASES[1]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "threads": 1, "check_integrity": True}


def expected_rows(model_type: str) -> list[torch.Tensor]:
    """Return what transformers' tower makes of each picture of the case."""
    ref, inputs = reference(model_type), dict(answer(model_type, CASE).inputs)
    names = ("pixel_values", "image_grid_thw", "image_sizes", "batch_num_images")
    given = {name: inputs[name] for name in names if name in inputs}
    with torch.inference_mode():
        found = ref.model.get_image_features(**given)
    levels = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    parts = [list(level) if isinstance(level, tuple | list) else [level] for level in levels]
    rows = torch.cat([torch.cat(part) for part in parts], -1)
    return list(rows.split(ref.num_tokens(inputs)))


@pytest.mark.parametrize("model_type", MODELS)
def test_embeddings_are_transformers_and_the_whole_models(model_type: str) -> None:
    folder = str(reference(model_type).folder)
    messages = CASE.messages(with_pictures=True)
    video = [{"role": "user", "content": [{"type": "video", "video": clip(9, 4, 60, 44)}]}]
    with LLM(folder, task="mm_embed", max_num_batched_tokens=64, **OPTIONS) as tower:
        found, frames = tower.embed_media(messages), tower.embed_media(video)
        assert tower.master.stats.num_encoded_media == 6
        np.testing.assert_array_equal(tower.embed_media(messages)[4].values, found[4].values)
        assert tower.master.stats.num_encoded_media == 6
    assert [medium.kind for medium in found] == ["image"] * 5
    for medium, rows in zip(found, expected_rows(model_type), strict=True):
        torch.testing.assert_close(torch.tensor(medium.values), rows, atol=1e-5, rtol=1e-5)
    with LLM(folder, **OPTIONS) as whole:
        (expected,) = whole.embed_media(video)
    np.testing.assert_allclose(frames[0].values, expected.values, atol=1e-6)
    assert (frames[0].grid, frames[0].timestamps) == (expected.grid, expected.timestamps)


@pytest.mark.parametrize(("model_type", "form"), [("qwen2_vl", "awq"), ("llava_onevision", "gptq")])
def test_nothing_of_a_quantised_language_model_is_read(
    model_type: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised, plain = quantised_pair(reference(model_type).folder, form, tmp_path)  # SigLIP's matrices, too
    with LLM(str(plain), task="mm_embed", **OPTIONS) as tower:
        (expected, *_) = tower.embed_media(CASE.messages(with_pictures=True))
    read: list[str] = []
    tensor = SafetensorsFile.tensor
    monkeypatch.setattr(SafetensorsFile, "tensor", lambda file, name: read.append(name) or tensor(file, name))
    with LLM(str(quantised), task="mm_embed", **OPTIONS) as tower:
        (found, *_) = tower.embed_media(CASE.messages(with_pictures=True))
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5, rtol=1e-5)
    own = ("visual", "vision_tower", "multi_modal_projector", "image_newline")
    assert read
    assert [name for name in read if not name.removeprefix("model.").startswith(own)] == []


def test_shards_without_a_tensor_of_the_tower_are_not_opened(tmp_path: Path) -> None:
    source, folder = reference("qwen2_vl").folder, tmp_path / "sharded"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: "tower.safetensors" if "visual" in name else "language.safetensors" for name in tensors}
    save_file({name: tensors[name] for name in tensors if "visual" in name}, folder / "tower.safetensors")
    (folder / "language.safetensors").write_bytes(b"no safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with LLM(str(folder), task="mm_embed", **OPTIONS) as tower:
        (found, *_) = tower.embed_media(CASE.messages(with_pictures=True))
    torch.testing.assert_close(torch.tensor(found.values), expected_rows("qwen2_vl")[0], atol=1e-5, rtol=1e-5)


def test_a_tower_alone_refuses_all_else() -> None:
    with LLM(str(reference("qwen3_vl").folder), task="mm_embed", enable_schedule_overlap=True, **OPTIONS) as llm:
        assert llm.embed_media(CASES[0].messages(with_pictures=True))[0].kind == "image"
        outputs = [
            *llm.generate(["text", {"prompt": "<|image_pad|>", "multi_modal_data": {"image": CASES[0].pictures[0]}}]),
            *llm.chat(CASES[0].messages(with_pictures=True)),
            *llm.embed("text"),
            *llm.embed_chat(CASES[0].messages(with_pictures=True)),
        ]
        assert [output.error_kind for output in outputs] == ["invalid_request"] * 5
        assert all("mm_embed" in (output.error or "") for output in outputs)
        with pytest.raises(InvalidRequest, match="mm_embed"):
            llm.score("a", "b")


def answers(llm: LLM, requests: list[tuple[str, dict[str, Any]]]) -> list[Answer]:
    """Return what a server over the model answers."""

    async def run() -> list[Answer]:
        state = ServerState.create(llm.master, ServiceConfig(), None)
        app = build_app(state)
        found = [await call(app, path, content) for path, content in requests]
        state.executor.shutdown()
        return found

    return asyncio.run(run())


def test_a_server_with_a_tower_alone_embeds_media_by_itself() -> None:
    url = f"data:image/png;base64,{base64.b64encode(encoded(CASES[0].pictures[0], 'PNG')).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": parts}]
    with LLM(str(reference("qwen3_vl").folder), task="mm_embed", **OPTIONS) as llm:
        expected = llm.embed_media(CASES[0].messages(with_pictures=True))[0]
        good, named, counted, *wrong = answers(
            llm,
            [
                ("/v1/embeddings", {"messages": messages, "encoding_format": "base64"}),
                ("/v1/embeddings", {"messages": messages, "task": "mm_embed"}),
                ("/tokenize", {"messages": messages}),
                ("/v1/embeddings", {"messages": messages, "task": "embed"}),
                ("/v1/embeddings", {"messages": messages, "dimensions": 3}),
                ("/v1/embeddings", {"messages": [{"role": "user", "content": "text"}]}),
                ("/v1/embeddings", {"input": "text"}),
                ("/v1/chat/completions", {"messages": messages}),
                ("/v1/completions", {"prompt": "text"}),
            ],
        )
    medium = good.json()["data"][0]
    assert (medium["object"], medium["grid"], medium["timestamps"]) == ("mm_embedding", list(expected.grid), [])
    values = np.frombuffer(base64.b64decode(medium["data"]), "<f4").reshape(medium["shape"])
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_allclose(named.json()["data"][0]["data"], expected.values, rtol=1e-6)
    assert counted.json()["count"] == answer("qwen3_vl", CASES[0]).inputs["input_ids"].shape[1]
    assert [answer.status for answer in wrong] == [400] * len(wrong)
    assert [answer.error["param"] for answer in wrong[1:4]] == ["dimensions", "messages", "messages"]


def test_a_model_for_embeddings_refuses_to_generate() -> None:
    with LLM(str(reference("qwen2_vl").folder), task="embed", **OPTIONS) as llm:
        vector = llm.embed_chat(CASES[0].messages(with_pictures=True))[0]
        assert vector.embedding is not None
        outputs = [*llm.generate("text"), *llm.chat(CASES[0].messages(with_pictures=True))]
        assert [output.error_kind for output in outputs] == ["invalid_request"] * 2
        assert llm.embed_media(CASES[0].messages(with_pictures=True))[0].kind == "image"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "llm"}, "served by the llm backend"),
        ({"backend": "rec"}, "served by the rec backend"),
        ({"model_impl": "transformers"}, "left to transformers"),
        ({"backend": "rec", "task": "embed"}, "needs a language model"),
    ],
)
def test_what_has_no_tower_of_its_own_does_not_start(options: dict[str, Any], words: str) -> None:
    files = resolve_model(str(reference("qwen2_vl").folder), LoadConfig())
    with pytest.raises(UnsupportedModel, match=words):
        choose_backend(ModelConfig(**{"task": "mm_embed", **options}), files)
