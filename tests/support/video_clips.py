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


def reference_video(folder: Path, content: bytes, text: str) -> dict[str, Any]:
    """Return what transformers' processors, which need torchvision, make of a prompt with one video mark."""
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    kinds = {
        "qwen2_vl": (Qwen2VLProcessor, Qwen2VLVideoProcessor),
        "qwen2_5_vl": (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor),
        "qwen3_vl": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
    }
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    processor_class, video_class = kinds[model_type]
    settings = json.loads((folder / "video_preprocessor_config.json").read_text())
    names = ("size", "patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")
    videos = video_class(**{name: settings[name] for name in names if name in settings}, cap_pixels_per_frame=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = processor_class(AutoImageProcessor.from_pretrained(folder), tokenizer, videos)
    frames, fps = decoded(content)
    metadata = VideoMetadata(
        len(frames), fps=fps, width=frames.shape[2], height=frames.shape[1], duration=len(frames) / fps
    )
    result = processor(
        text=[text],
        videos=[frames],
        return_tensors="pt",
        videos_kwargs={"video_metadata": [metadata], "do_sample_frames": True, "fps": 2, "return_metadata": True},
    )
    return dict(result)
