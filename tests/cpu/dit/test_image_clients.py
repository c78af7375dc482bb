"""Who uses images: OpenAI's client over HTTP, and scripts through the offline API."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI
from PIL import Image

from support import tiny_pipelines
from support.image_servers import DIGITS
from xllm_framework.config import ServiceConfig
from xllm_framework.errors import InvalidRequest, ModelLoadError, UnsupportedModel
from xllm_runtime import LLM
from xllm_runtime.master.dit import DiTMaster
from xllm_server.app import build_app
from xllm_server.state import ServerState


def with_client(master: DiTMaster, use: Callable[[AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        state = ServerState.create(master, ServiceConfig())
        transport = httpx.ASGITransport(build_app(state))
        async with httpx.AsyncClient(transport=transport) as http:
            try:
                return await use(AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=http))
            finally:
                state.executor.shutdown()

    return asyncio.run(run())


def test_openais_client_generates(digits: DiTMaster) -> None:
    async def use(client: AsyncOpenAI) -> Any:
        return await client.images.generate(
            prompt="four", model="tiny", n=2, size="auto", quality="low", extra_body={"num_inference_steps": 3}
        )

    answer = with_client(digits, use)
    assert len(answer.data) == 2
    assert answer.output_format == "png"
    image = Image.open(io.BytesIO(base64.b64decode(answer.data[1].b64_json)))
    assert image.size == (32, 32)


def test_openais_client_streams(digits: DiTMaster) -> None:
    async def use(client: AsyncOpenAI) -> Any:
        stream = await client.images.generate(
            prompt="four", model="tiny", stream=True, partial_images=1, extra_body={"num_inference_steps": 3}
        )
        return [event async for event in stream]

    events = with_client(digits, use)
    assert events[-1].type == "image_generation.completed"
    assert base64.b64decode(events[-1].b64_json).startswith(b"\x89PNG")


def test_openais_client_edits(filler: DiTMaster) -> None:
    def file(seed: int, mode: str) -> bytes:
        target = io.BytesIO()
        tiny_pipelines.picture(64, 64, seed).convert(mode).save(target, "PNG")
        return target.getvalue()

    async def use(client: AsyncOpenAI) -> Any:
        return await client.images.edit(
            image=("a.png", file(0, "RGB")),
            mask=("m.png", file(1, "L")),
            prompt="a cat",
            model="tiny",
            size="32x32",
            extra_body={"num_inference_steps": 2, "max_sequence_length": 16, "seed": 1},
        )

    assert len(with_client(filler, use).data) == 1


def test_scripts_draw_offline() -> None:
    with LLM(str(DIGITS), device="cpu", threads=1) as model:
        outputs = model.generate_images(["one", "a unicorn", "two"], num_inference_steps=3, seed=5, guidance_scale=2.0)
        again = model.generate_images("two", num_inference_steps=3, seed=5, guidance_scale=2.0)[0]
        with pytest.raises(InvalidRequest):
            model.generate_images("two", images=[np.zeros((2, 2, 4), np.uint8)])
    assert [output.error_kind for output in outputs] == [None, "invalid_request", None]
    image = outputs[2].images[0]
    assert image.array.shape == (32, 32, 3)
    assert image.seed == 5
    assert np.array_equal(image.array, again.images[0].array)
    assert image.to_pil().size == (32, 32)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda index: index | {"_class_name": "StableDiffusionPipeline"}, UnsupportedModel),
        (lambda index: {name: entry for name, entry in index.items() if name != "vae"}, ModelLoadError),
        (lambda index: index | {"transformer": ["os", "system"]}, ModelLoadError),
        (lambda index: index | {"vae": ["my_module", "MyVAE"]}, UnsupportedModel),
        (lambda index: index | {"scheduler": ["diffusers", "LCMScheduler"]}, UnsupportedModel),
    ],
)
def test_a_folder_that_asks_for_something_unknown_is_refused(tmp_path, change, error) -> None:
    import json
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(DIGITS, folder)
    path = folder / "model_index.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(error, match=r"model|known|names|drawn"):
        LLM(str(folder), device="cpu", threads=1)
