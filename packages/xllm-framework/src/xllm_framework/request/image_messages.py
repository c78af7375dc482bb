"""What the two processes say to each other about images, beside `messages`. Plain data, msgpack on the wire.

Knows nothing of how the messages travel.
"""

from __future__ import annotations

import msgspec

from xllm_framework.request.image_params import ImageParams, RawImage


class AddImages(msgspec.Struct, tag="add_images", array_like=True, frozen=True):
    """Start a request for images. Checked by the front side."""

    request_id: str
    params: ImageParams
    arrival_time_s: float
    priority: int = 0
    deadline_s: float | None = None
    """Reading of the monotonic clock; a request of which nothing is drawn by then is given up."""


class ImageUpdate(msgspec.Struct, array_like=True, frozen=True):
    """News of one request; one with `finished` is the last."""

    request_id: str
    position: int | None = None
    """Requests in front of it in the queue, while it waits."""
    num_steps_done: int = 0
    """Over all of its images."""
    num_steps: int = 0
    """Over all of its images."""
    index: int | None = None
    """Which of its images is done, with `image`."""
    image: RawImage | None = None
    finished: bool = False
    is_aborted: bool = False
    error: str | None = None
    error_kind: str | None = None
