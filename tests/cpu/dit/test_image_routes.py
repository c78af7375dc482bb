"""The image routes over real masters: OpenAI's shapes, the predecessor's, events, and every hostile value refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from PIL import Image

from support import tiny_pipelines
from support.asgi import Answer, call
from xllm_framework.config import ServiceConfig
from xllm_runtime.master.dit import DiTMaster
from xllm_runtime.worker import dit as worker
from xllm_server.app import build_app
from xllm_server.state import ServerState

STEPS = 4


def ask(master: DiTMaster, path: str, content: Any = None, **options: Any) -> Answer:
    async def once(app: Any) -> Answer:
        return await call(app, path, content, **options)

    return serve(master, once)


def serve(master: DiTMaster, use: Callable[[Any], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        state = ServerState.create(master, ServiceConfig())
        try:
            return await use(build_app(state))
        finally:
            state.executor.shutdown()

    return asyncio.run(run())


def opened(data: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data["b64_json"])))


def png(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def generation(**fields: Any) -> dict[str, Any]:
    return {"prompt": "seven", "num_inference_steps": STEPS, "seed": 3, **fields}


def test_generations_answer_in_openai_shape(digits: DiTMaster) -> None:
    answer = ask(digits, "/v1/images/generations", generation(n=2, quality="hd", model="tiny"))
    assert answer.status == 200, answer.body
    body = answer.json()
    assert [data["seed"] for data in body["data"]] == [3, 4]
    assert body["size"] == "32x32"
    assert body["notes"] == ["quality is ignored: a local model has no part for it."]
    assert {(opened(data).format, opened(data).size) for data in body["data"]} == {("PNG", (32, 32))}
    assert body["data"][0]["b64_json"] != body["data"][1]["b64_json"]


def test_the_same_seed_gives_the_same_image(digits: DiTMaster) -> None:
    first = ask(digits, "/v1/images/generations", generation(n=2)).json()["data"][1]
    second = ask(digits, "/v1/images/generations", generation(seed=4)).json()["data"][0]
    assert first["b64_json"] == second["b64_json"]


@pytest.mark.parametrize("output_format", ["jpeg", "webp"])
def test_other_formats(digits: DiTMaster, output_format: str) -> None:
    answer = ask(digits, "/v1/images/generations", generation(output_format=output_format, output_compression=50))
    assert opened(answer.json()["data"][0]).format == output_format.upper()


def test_urls_are_served_while_the_store_keeps_them(digits: DiTMaster) -> None:
    async def use(app: Any) -> Answer:
        answer = await call(app, "/v1/images/generations", generation(response_format="url"))
        url = answer.json()["data"][0]["url"]
        assert "/v1/images/files/" in url
        missing = await call(app, "/v1/images/files/nothing.png", method="GET")
        assert missing.status == 404
        return await call(app, "/v1/images/files/" + url.rpartition("/")[2], method="GET")

    answer = serve(digits, use)
    assert answer.status == 200
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.body)).size == (32, 32)


def events_of(answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    events = []
    for block in answer.body.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        events.append((lines["event"], json.loads(lines["data"])))
    return events


def test_a_stream_tells_progress_and_then_each_image(digits: DiTMaster) -> None:
    events = events_of(ask(digits, "/v1/images/generations", generation(n=2, stream=True)))
    names = [name for name, _ in events]
    assert names[-1] == "image_generation.completed"
    assert names.count("image_generation.completed") == 2
    steps = [content["step"] for name, content in events if name == "image_generation.progress"]
    assert steps == sorted(steps)
    assert steps[-1] < 2 * STEPS
    assert all(content["type"] == name for name, content in events)
    assert opened(events[-1][1]).size == (32, 32)


def test_the_predecessors_route(digits: DiTMaster) -> None:
    body = {
        "model": "tiny",
        "input": {"prompt": "three"},
        "parameters": {"size": "32*32", "num_inference_steps": STEPS, "num_images_per_prompt": 2, "seed": 9},
        "request_id": "mine",
    }
    content = ask(digits, "/v1/image/generation", body).json()
    results = content["output"]["results"]
    assert [(result["width"], result["height"], result["seed"]) for result in results] == [(32, 32, 9), (32, 32, 10)]
    assert Image.open(io.BytesIO(base64.b64decode(results[0]["image"]))).format == "PNG"
    assert content["id"] == "imggen-mine"


TENSOR = {"name": "t", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [0.0, 1.0]}}


@pytest.mark.parametrize(
    "name",
    [
        "prompt_embed",
        "pooled_prompt_embed",
        "negative_prompt_embed",
        "negative_pooled_prompt_embed",
        "latent",
        "masked_image_latent",
    ],
)
@pytest.mark.parametrize("prompt", [{}, {"prompt": "three"}])
def test_the_predecessors_tensors_are_refused_by_name(digits: DiTMaster, name: str, prompt: dict[str, str]) -> None:
    answer = ask(digits, "/v1/image/generation", {"input": {**prompt, name: TENSOR}})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == f"input.{name}"
    assert name in answer.error["message"]


def test_the_predecessors_route_needs_a_prompt_and_renorms_nothing(digits: DiTMaster) -> None:
    assert ask(digits, "/v1/image/generation", {"input": {}}).error["param"] == "prompt"
    body = {"input": {"prompt": "three"}, "parameters": {"enable_cfg_renorm": True}}
    assert ask(digits, "/v1/image/generation", body).error["param"] == "parameters.enable_cfg_renorm"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "1000000x1000000"}, "size"),
        ({"size": "-32x32"}, "size"),
        ({"size": "31x33"}, "size"),
        ({"size": "0x0"}, "size"),
        ({"size": "9" * 5000}, "size"),
        ({"n": 10**6}, "n"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"num_inference_steps": 10_000}, "num_inference_steps"),
        ({"num_inference_steps": -1}, "num_inference_steps"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"guidance_scale": -1.0}, "guidance_scale"),
        ({"guidance_scale": 1e30}, "guidance_scale"),
        ({"true_cfg_scale": -3}, "true_cfg_scale"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"strength": 0.5}, "strength"),
        ({"max_sequence_length": 10**9}, "max_sequence_length"),
        ({"cache_policy": "Magic"}, "cache_policy"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a unicorn"}, "prompt"),
        ({"prompt": "x" * 100_000}, "prompt"),
        ({"prompt": ["seven"]}, "prompt"),
        ({"output_format": "gif"}, "output_format"),
        ({"output_compression": 101}, "output_compression"),
        ({"response_format": "html"}, "response_format"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_hostile_values_are_refused_by_name(digits: DiTMaster, fields: dict[str, Any], param: str) -> None:
    answer = ask(digits, "/v1/images/generations", generation(**fields))
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param


def test_another_model_and_other_routes_are_not_found(digits: DiTMaster) -> None:
    assert ask(digits, "/v1/images/generations", generation(model="other")).status == 404
    assert ask(digits, "/v1/chat/completions", {"messages": []}).status == 404
    assert ask(digits, "/v1/models", method="GET").json()["data"][0]["id"] == "tiny"


def edit(**fields: Any) -> dict[str, Any]:
    image = base64.b64encode(png(tiny_pipelines.picture(64, 64))).decode()
    mask = base64.b64encode(png(tiny_pipelines.picture(64, 64, seed=1).convert("L"))).decode()
    body = {"prompt": "a cat", "image": image, "mask": mask, "size": "32x32", "num_inference_steps": 2, "seed": 1}
    return {**body, "max_sequence_length": 16, **fields}


def test_edits_by_json(filler: DiTMaster) -> None:
    answer = ask(filler, "/v1/images/edits", edit(image="data:image/png;base64," + edit()["image"]))
    assert answer.status == 200, answer.body
    assert opened(answer.json()["data"][0]).size == (32, 32)


def form(fields: dict[str, Any], files: dict[str, bytes]) -> tuple[bytes, dict[str, str]]:
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    parts += [
        f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in files.items()
    ]
    return b"".join(parts) + b"--b--\r\n", {"content-type": "multipart/form-data; boundary=b"}


def test_edits_by_form_draw_the_same(filler: DiTMaster) -> None:
    fields = {name: value for name, value in edit().items() if name not in ("image", "mask")}
    files = {name: base64.b64decode(edit()[name]) for name in ("image", "mask")}
    content, headers = form(fields, files)
    answer = ask(filler, "/v1/images/edits", content, headers=headers)
    assert answer.status == 200, answer.body
    by_json = ask(filler, "/v1/images/edits", edit())
    assert answer.json()["data"] == by_json.json()["data"]


def test_the_transparent_part_of_a_mask_is_drawn_anew(filler: DiTMaster) -> None:
    grey = tiny_pipelines.picture(64, 64, seed=1).convert("L")
    clear = Image.new("RGBA", grey.size)
    clear.putalpha(grey.point(lambda value: 255 - value))
    by_alpha = ask(filler, "/v1/images/edits", edit(mask=base64.b64encode(png(clear)).decode()))
    assert by_alpha.json()["data"] == ask(filler, "/v1/images/edits", edit()).json()["data"]


def bomb(side: int) -> bytes:
    """Return a PNG whose header tells of many pixels, and which has few bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 4096))
        + chunk(b"IEND", b"")
    )


HOSTILE = {
    "no base64": "%%%",
    "no image": base64.b64encode(b"hello").decode(),
    "empty": "",
    "bomb": base64.b64encode(bomb(60_000)).decode(),
    "cut": base64.b64encode(png(tiny_pipelines.picture(64, 64))[:200]).decode(),
    "lying header": base64.b64encode(bomb(64)[:-40]).decode(),
    "svg": base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' width='9999' height='9999'/>").decode(),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("field", ["image", "mask"])
def test_hostile_images_are_refused(filler: DiTMaster, kind: str, field: str) -> None:
    answer = ask(filler, "/v1/images/edits", edit(**{field: HOSTILE[kind]}))
    assert answer.status == 400, answer.body
    assert answer.error["param"] == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mask": None}, "mask"),
        ({"image": None}, "image"),
        ({"image": [edit()["image"]] * 2}, "image"),
        ({"size": "36x32"}, "size"),
        ({"size": "4096x8192"}, "size"),
        ({"strength": 0.0}, "strength"),
        ({"strength": 0.1}, "strength"),
        ({"strength": 2}, "strength"),
    ],
)
def test_edits_that_do_not_fit_the_model_are_refused(filler: DiTMaster, fields: dict[str, Any], param: str) -> None:
    answer = ask(filler, "/v1/images/edits", edit(**fields))
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param


@pytest.mark.parametrize("content", [b"", b"--b", b"--b\r\n\r\n", b"x" * 5000])
def test_broken_forms_are_refused(filler: DiTMaster, content: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert ask(filler, "/v1/images/edits", content, headers=headers).status == 400
    assert ask(filler, "/v1/images/edits", content, headers={"content-type": "multipart/form-data"}).status == 400


def test_a_hang_up_cancels(digits: DiTMaster) -> None:
    async def use(app: Any) -> Answer:
        hang_up = asyncio.Event()
        answer = Answer()
        body = generation(num_inference_steps=200, n=8, stream=True)
        task = asyncio.create_task(call(app, "/v1/images/generations", body, hang_up=hang_up, answer=answer))
        while not answer.parts:
            await asyncio.sleep(0.01)
        hang_up.set()
        await asyncio.wait([task])
        for _ in range(500):
            if digits.num_in_flight == 0 and digits.stats.num_running == 0:
                break
            await asyncio.sleep(0.02)
        return answer

    serve(digits, use)
    assert digits.num_in_flight == 0
    follow_up = ask(digits, "/v1/images/generations", generation())
    assert follow_up.status == 200


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
@pytest.mark.parametrize("stage", ["denoise", "to_pixels"])
def test_out_of_memory_fails_that_batch_alone(
    digits: DiTMaster, monkeypatch: pytest.MonkeyPatch, error: Exception, stage: str
) -> None:
    whole = getattr(worker, stage)
    batches: list[int] = []

    def once_out_of_memory(*given: Any) -> Any:
        batches.append(1)
        if len(batches) == 1:
            raise error
        return whole(*given)

    monkeypatch.setattr(worker, stage, once_out_of_memory)
    failed = ask(digits, "/v1/images/generations", generation(n=2))
    assert failed.status == 503, failed.body
    assert int(failed.headers["retry-after"]) > 0
    assert "no memory" in failed.error["message"]
    assert ask(digits, "/v1/images/generations", generation(n=2)).status == 200
    end_s = time.monotonic() + 10.0
    while digits.num_in_flight > 0 and time.monotonic() < end_s:
        time.sleep(0.01)
    assert digits.num_in_flight == 0


def test_the_page_of_an_image_model(digits: DiTMaster) -> None:
    page = ask(digits, "/", method="GET")
    assert b"/web/images.js" in page.body
    assert b"image_generation" not in page.body
    script = ask(digits, "/web/images.js", method="GET")
    assert script.headers["content-type"].startswith("text/javascript")
    assert b"/v1/images/generations" in script.body
