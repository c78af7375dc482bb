"""Pictures become what transformers' processors make of them, and hostile files become errors."""

from __future__ import annotations

import io
import tracemalloc

import PIL.Image
import pytest
import torch
from transformers.image_utils import load_image

from support.odd_images import bombs, encoded, fuzzed_images, odd_images
from support.tiny_vision import picture
from support.vision_cases import reference
from xllm_framework.config import LoadConfig, MultimodalConfig
from xllm_framework.errors import InvalidRequest
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.models.vlm.patches import patchify
from xllm_runtime.processors.image_file import decode_image
from xllm_runtime.processors.media_loader import MediaLoader
from xllm_runtime.processors.media_parts import MediaSource
from xllm_runtime.processors.media_processor import MediaProcessor, load_media_processor
from xllm_runtime.processors.normalisations import load_normalisations
from xllm_runtime.worker.media_encoder import MediaEncoder

IMAGES = odd_images()
CONFIG = MultimodalConfig()


def processor_of(model_type: str) -> tuple[MediaProcessor, MediaEncoder]:
    files = resolve_model(str(reference(model_type).folder), LoadConfig())
    args = load_model_args(files)
    processor = load_media_processor(CONFIG, files, args, load_tokenizer(files))
    scales = load_normalisations(files, args)
    encoder = MediaEncoder(None, scales, torch.float32, torch.device("cpu"), 0)  # type: ignore[arg-type]
    return processor, encoder


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_vl", "glm4v"])
def test_pixels_grids_and_token_counts_are_transformers(model_type: str) -> None:
    processor, encoder = processor_of(model_type)
    ref, settings = reference(model_type), processor.image  # type: ignore[attr-defined]
    assert len(IMAGES) >= 20
    for name, content in IMAGES.items():
        image = load_image(PIL.Image.open(io.BytesIO(content)))
        if name == "1 x 2000":
            with pytest.raises(ValueError, match="aspect ratio"):
                ref.image_processor(images=[image], return_tensors="pt")
            with pytest.raises(InvalidRequest, match="200 times"):
                processor.process_image(decode_image(content, CONFIG.max_image_pixels, "part"), "part")
            continue
        expected = ref.image_processor(images=[image], return_tensors="pt")
        found = processor.process_image(decode_image(content, CONFIG.max_image_pixels, "part"), "part")
        assert list(found.item.grid) == expected["image_grid_thw"][0].tolist(), name
        assert len(found.expansion) == expected["image_grid_thw"].prod().item() // 4, name
        patches = patchify(encoder.frames(found.item), settings.patch_size, settings.temporal_patch_size, 2)
        torch.testing.assert_close(patches, expected["pixel_values"], atol=1e-6, rtol=1e-6, msg=name)


def test_tiles_and_token_counts_of_llava_are_transformers() -> None:
    processor, encoder = processor_of("llava_onevision")
    ref = reference("llava_onevision")
    for name, content in IMAGES.items():
        image = load_image(PIL.Image.open(io.BytesIO(content)))
        for num_images in (1, 2):
            expected = ref.image_processor(images=[[image] * num_images], return_tensors="pt")
            decoded = decode_image(content, CONFIG.max_image_pixels, "part")
            found = processor.process_image(decoded, "part", num_images)
            assert len(found.expansion) == ref.num_tokens(expected)[0], name
            tiles = encoder.frames(found.item)
            torch.testing.assert_close(tiles, expected["pixel_values"][0][: len(tiles)], atol=1e-6, rtol=1e-6, msg=name)
            assert num_images > 1 or len(tiles) == len(expected["pixel_values"][0]), name


def test_fuzzed_files_are_served_or_refused_and_take_bounded_memory() -> None:
    processor, _ = processor_of("qwen2_vl")
    refused = 0
    tracemalloc.start()
    for content in fuzzed_images(200):
        try:
            processor.process_image(decode_image(content, 4_000_000, "part"), "part")
        except InvalidRequest:
            refused += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 60
    assert peak < 100e6


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_bombs_are_refused_by_their_headers(kind: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_image(bombs()[kind], 1_000_000, "part")


@pytest.mark.parametrize(
    "content",
    [b"", b"GIF89a", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"P6 9 9 255\n"],
)
def test_other_kinds_of_files_are_not_even_tried(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no image"):
        decode_image(content, 1_000_000, "part")


def test_the_same_file_is_processed_once_and_too_many_parts_are_refused() -> None:
    processor, _ = processor_of("qwen2_vl")
    loader = MediaLoader(MultimodalConfig(limit_image_per_prompt=3, max_processor_cache_items=1), processor)
    files = [encoded(picture(seed), "PNG") for seed in (1, 1, 2)]
    sources = [MediaSource("image", f"part {index}", content) for index, content in enumerate(files)]
    first, _, third = loader.load(sources)
    again = loader.load(sources[:1])[0]
    assert again.item == first.item
    assert third.item.content_hash != first.item.content_hash
    assert loader.load(sources[:1])[0] is again
    with pytest.raises(InvalidRequest, match="limit_image_per_prompt"):
        loader.load(sources * 2)
    with pytest.raises(InvalidRequest, match="not a picture"):
        loader.load([MediaSource("image", "part", 7)])
    loader.close()
