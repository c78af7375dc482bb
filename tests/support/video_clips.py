"""Short video files, and what transformers' processors make of them. Knows nothing of who else reads them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt


def clip(
    num_frames: int, fps: int, width: int, height: int, *, container: str = "mp4", codec: str = "mpeg4", seed: int = 0
) -> bytes:
    """Return a video file of moving patterns."""
    generator = np.random.default_rng(seed)
    base = generator.integers(0, 256, (height, width, 3), np.uint8)
    stream_bytes = io.BytesIO()
    with av.open(stream_bytes, "w", format=container) as output:
        stream = output.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(num_frames):
            picture = np.roll(base // 2, 3 * index, axis=1) + np.uint8(index * 3 % 100)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24")):
                output.mux(packet)
        for packet in stream.encode():
            output.mux(packet)
    return stream_bytes.getvalue()


def decoded(content: bytes) -> tuple[npt.NDArray[np.uint8], float]:
    """Return (all frames [N, H, W, 3], frames a second)."""
    with av.open(io.BytesIO(content)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return np.stack(frames), float(container.streams.video[0].average_rate)


def clips() -> dict[str, bytes]:
    """Return four videos by name."""
    return {
        "mp4": clip(37, 10, 96, 64),
        "avi": clip(13, 25, 122, 58, container="avi", seed=1),
        "webm": clip(25, 5, 64, 90, container="webm", codec="libvpx", seed=2),
        "two frames": clip(2, 8, 40, 40, seed=3),
    }


PROCESSORS = {
    "qwen2_vl": ("qwen2_vl.Qwen2VLProcessor", "qwen2_vl.Qwen2VLVideoProcessor"),
    "qwen2_5_vl": ("qwen2_5_vl.Qwen2_5_VLProcessor", "qwen2_vl.Qwen2VLVideoProcessor"),
    "qwen3_vl": ("qwen3_vl.Qwen3VLProcessor", "qwen3_vl.Qwen3VLVideoProcessor"),
    "glm4v": ("glm4v.Glm4vProcessor", "glm4v.Glm4vVideoProcessor"),
    "glm46v": ("glm46v.Glm46VProcessor", "glm46v.Glm46VVideoProcessor"),
    "llava_onevision": ("llava_onevision.LlavaOnevisionProcessor", "llava_onevision.LlavaOnevisionVideoProcessor"),
}
"""Model type -> transformers' processor and video processor."""
OWN_RATES = {"llava_onevision": 1, "glm46v": None}
"""Frames a second that are asked for where it is not 2; None leaves it to the processor."""


def reference_video(folder: Path, content: bytes, text: str) -> dict[str, Any]:
    """Return what transformers' processors, which need torchvision, make of a prompt with one video mark."""
    import transformers.models
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.video_utils import VideoMetadata

    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    processor_class, video_class = (_find(transformers.models, path) for path in PROCESSORS[model_type])
    settings = json.loads((folder / "video_preprocessor_config.json").read_text())
    names = ("size", "patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")
    options: dict[str, Any] = {"cap_pixels_per_frame": False} if model_type.startswith("qwen") else {}
    videos = video_class(**{name: settings[name] for name in names if name in settings}, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = processor_class(AutoImageProcessor.from_pretrained(folder, backend="pil"), tokenizer, videos)
    if model_type == "llava_onevision":
        processor.num_image_tokens, processor.video_token = 16, "<|video_pad|>"
    frames, fps = decoded(content)
    metadata = VideoMetadata(
        len(frames), fps=fps, width=frames.shape[2], height=frames.shape[1], duration=len(frames) / fps
    )
    rate = OWN_RATES.get(model_type, 2)
    asked = {"video_metadata": [metadata], "do_sample_frames": True, "fps": rate, "return_metadata": True}
    return dict(processor(text=[text], videos=[frames], return_tensors="pt", videos_kwargs=asked))


def _find(package: Any, path: str) -> Any:
    module, _, name = path.partition(".")
    return getattr(getattr(package, module), name)
