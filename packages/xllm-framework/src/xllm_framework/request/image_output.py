"""What comes back to a caller who asked for images. Knows nothing of files' formats or of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from xllm_framework.request.image_params import RawImage

if TYPE_CHECKING:
    from PIL import Image


@dataclass(slots=True)
class GeneratedImage:
    """One image and the seed that draws it again."""

    index: int
    seed: int
    raw: RawImage

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The pixels, uint8 [height, width, 3]; a view."""
        return np.frombuffer(self.raw.pixels, np.uint8).reshape(self.raw.height, self.raw.width, 3)

    def to_pil(self) -> Image.Image:
        """Return it as Pillow's image, which can be saved; needs Pillow."""
        from PIL import Image

        return Image.fromarray(self.array)


@dataclass(slots=True)
class ImageOutput:
    """News of one request, given to its output callback; the last has `finished`.

    `error` is set on the last output of a request that failed; then `error_kind` is the `kind` of the `XLLMError`.
    """

    request_id: str
    images: list[GeneratedImage] = field(default_factory=list)
    """Those that are done since the last output."""
    position: int | None = None
    """Requests in front of it in the queue, while it waits."""
    num_steps_done: int = 0
    num_steps: int = 0
    finished: bool = False
    is_aborted: bool = False
    error: str | None = None
    error_kind: str | None = None

    def extend(self, later: ImageOutput) -> None:
        """Add a later output of the same request."""
        self.images = [*self.images, *later.images]
        self.position = later.position
        self.num_steps_done, self.num_steps = later.num_steps_done, later.num_steps
        self.finished, self.is_aborted = later.finished, later.is_aborted
        self.error, self.error_kind = later.error, later.error_kind
