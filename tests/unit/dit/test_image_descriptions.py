"""What folders can draw, requests filled in from that, and both as bytes between processes. Without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from xllm_framework.config import XLLMConfig
from xllm_framework.config.dit import DiTConfig
from xllm_framework.errors import InvalidConfig, InvalidRequest, ModelLoadError, UnsupportedModel
from xllm_framework.model.image_pipeline import ImagePipeline, read_image_pipeline
from xllm_framework.request.image_messages import AddImages, ImageUpdate
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_framework.request.messages import EngineStats, FromEngine, ImageUpdates, ToEngine
from xllm_framework.step_cache import StepCacheParams
from xllm_runtime.master.dit_request import ImageRequest, ImageRequestFactory

FLUX = {"guidance_embeds": True, "in_channels": 64}
VAE = {"block_out_channels": [128, 256, 512, 512]}


def folder(path: Path, class_name: str, transformer: dict[str, Any], vae: dict[str, Any], **index: Any) -> Path:
    for name, config in {"transformer": transformer, "vae": vae}.items():
        (path / name).mkdir(parents=True)
        (path / name / "config.json").write_text(json.dumps(config))
    parts = {name: ["diffusers", "Any"] for name in ("transformer", "vae", "scheduler")}
    absent = {"image_encoder": [None, None], "_diffusers_version": "0"}
    (path / "model_index.json").write_text(json.dumps({"_class_name": class_name, **parts, **absent, **index}))
    return path


def test_flux_dev_and_schnell_differ_by_their_guidance(tmp_path: Path) -> None:
    dev = read_image_pipeline(folder(tmp_path / "dev", "FluxPipeline", FLUX, VAE))
    schnell = read_image_pipeline(folder(tmp_path / "s", "FluxPipeline", FLUX | {"guidance_embeds": False}, VAE))
    assert (dev.default_num_steps, dev.default_guidance_scale, dev.default_max_sequence_length) == (28, 3.5, 512)
    assert (schnell.default_num_steps, schnell.default_guidance_scale) == (4, 0.0)
    assert schnell.default_max_sequence_length == 256
    assert dev.default_size == (1024, 1024)
    assert dev.size_multiple == 16
    assert "image_encoder" not in dev.components


def test_other_families(tmp_path: Path) -> None:
    qwen = read_image_pipeline(
        folder(tmp_path / "q", "QwenImageEditPipeline", {}, {"temperal_downsample": [False, True, True]})
    )
    assert (qwen.image_input, qwen.size_multiple, qwen.max_sequence_length) == ("edit", 16, 1024)
    config = {"sample_size": 128, "patch_size": 2, "pos_embed_max_size": 192}
    sd3 = read_image_pipeline(folder(tmp_path / "3", "StableDiffusion3Pipeline", config, VAE))
    assert (sd3.default_size, sd3.size_multiple, sd3.max_size) == ((1024, 1024), 16, 3072)
    labels = {"0": "tench, Tinca tinca", "1": "goldfish"}
    dit = read_image_pipeline(folder(tmp_path / "d", "DiTPipeline", {"sample_size": 32}, VAE, id2label=labels))
    assert dit.labels == {"tench": 0, "Tinca tinca": 0, "goldfish": 1}
    assert dit.has_fixed_size


def test_unknown_and_broken_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="FluxPipeline"):
        read_image_pipeline(folder(tmp_path / "a", "StableDiffusionPipeline", FLUX, VAE))
    with pytest.raises(ModelLoadError, match="guidance_embeds"):
        read_image_pipeline(folder(tmp_path / "b", "FluxPipeline", {}, VAE))
    broken = folder(tmp_path / "c", "FluxPipeline", FLUX, VAE)
    (broken / "vae" / "config.json").unlink()
    with pytest.raises(ModelLoadError, match="vae"):
        read_image_pipeline(broken)


def pipeline(**more: Any) -> ImagePipeline:
    settings = {
        "default_size": (1024, 512),
        "size_multiple": 16,
        "default_num_steps": 28,
        "default_guidance_scale": 3.5,
    }
    return ImagePipeline("FluxPipeline", {}, **{**settings, **more})


def test_what_a_request_leaves_out_is_filled_in() -> None:
    factory = ImageRequestFactory(pipeline(), DiTConfig(dit_cache_policy="FBCache"), seed=7)
    prepared = factory.prepare(ImageRequest(prompt="a cat"), request_id="mine")
    params = prepared.params
    assert (params.width, params.height, params.num_steps, params.guidance_scale, params.seed) == (
        1024,
        512,
        28,
        3.5,
        7,
    )
    assert params.cache.policy == "FBCache"
    assert prepared.client_request_id == "mine"
    assert prepared.request_id != factory.prepare(ImageRequest(prompt="a cat"), request_id="mine").request_id
    assert factory.prepare(ImageRequest(prompt="a cat", cache_policy="None")).params.cache.policy == "None"


def test_without_a_seed_each_request_draws_one() -> None:
    factory = ImageRequestFactory(pipeline(), DiTConfig())
    assert len({factory.prepare(ImageRequest(prompt="p")).params.seed for _ in range(4)}) > 1


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"width": 1024, "height": 8192}, "size"),
        ({"mask": RawImage(1, 1, b"x", 1)}, "mask"),
        ({"images": (RawImage(1, 1, b"rgb"),)}, "image"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
        ({"guidance_scale": float("inf")}, "guidance_scale"),
        ({"seed": 2**63 - 1}, "seed"),
    ],
)
def test_what_cannot_be_drawn_is_refused(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ImageRequestFactory(pipeline(), DiTConfig()).prepare(ImageRequest(prompt="p", **asked))
    assert refused.value.param == param


def test_messages_survive_the_wire() -> None:
    params = ImageParams(
        "p", 8, 8, 3, images=[RawImage(1, 1, b"rgb")], mask=RawImage(1, 1, b"m", 1), cache=StepCacheParams("FBCache")
    )
    there: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(AddImages("a", params, 1.5)), type=ToEngine)
    assert there == AddImages("a", params, 1.5)
    updates = ImageUpdates([ImageUpdate("a", image=RawImage(1, 1, b"rgb"), index=0, finished=True)], EngineStats())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(updates), type=FromEngine) == updates


def test_options_have_ranges() -> None:
    assert XLLMConfig.from_flat({"dit_cache_policy": "TaylorSeer"}).dit.step_cache().policy == "TaylorSeer"
    for options in ({"max_requests_per_batch": 0}, {"dit_cache_policy": "Magic"}, {"dit_max_num_steps": 10**6}):
        with pytest.raises(InvalidConfig):
            XLLMConfig.from_flat(options)
