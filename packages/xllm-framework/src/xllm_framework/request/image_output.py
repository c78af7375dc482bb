"""What comes back to a caller who asked for images. Knows nothing of files' formats or of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from xllm_framework.request.image_params import RawImage
from xllm_framework.request.output import RequestOutput

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
class ImageOutput(RequestOutput):
    """News of a request for images: those that are done since the last output, and how far the others are."""

    images: list[GeneratedImage] = field(default_factory=list)
    position: int | None = None
    """Requests in front of it in the queue, while it waits."""
    num_steps_done: int = 0
    """Over all of its images; so is `num_steps`."""
    num_steps: int = 0

    def extend(self, delta: RequestOutput) -> None:
        """Add a later output of the same request."""
        RequestOutput.extend(self, delta)
        assert isinstance(delta, ImageOutput), "outputs of one request are of one kind"
        self.images = sorted([*self.images, *delta.images], key=lambda image: image.index)
        self.position = delta.position
        self.num_steps_done, self.num_steps = delta.num_steps_done, delta.num_steps
