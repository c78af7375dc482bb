"""What images and videos may be, where they may come from, and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalConfig:
    """Options of the vlm backend."""

    allowed_media_path: str = ""
    """Folder whose files requests may name as images or videos (file:// URLs and paths); empty allows none."""
    allow_private_media: bool = False
    """Let media URLs reach private, loopback and link-local addresses and any port; only where every client is trusted."""
    limit_image_per_prompt: int = 8
    """Images that one prompt may bring."""
    limit_video_per_prompt: int = 1
    """Videos that one prompt may bring."""
    max_media_bytes: int = 32 * 1024 * 1024
    """Bytes of one image or video file at most."""
    max_image_pixels: int = 64_000_000
    """Pixels of one image at most, read from its header before it is decoded; also of one video frame."""
    media_timeout: float = 10.0
    """Seconds that fetching one medium may take, redirects included."""
    video_fps: float = 0.0
    """Frames a second that are taken of a video; 0 takes the model's own rate."""
    max_video_frames: int = 64
    """Frames that are taken of a video at most, spread over all of it."""
    max_processor_cache_items: int = 256
    """Decoded and resized media that the front side keeps for requests that bring the same files again; 0 keeps none."""
    max_encoder_cache_size: int = 256 * 1024 * 1024
    """Bytes of embeddings that a worker keeps on its device for media that come again, or are computed over several steps."""
    num_media_threads: int = 4
    """Threads that fetch, decode and resize media."""
