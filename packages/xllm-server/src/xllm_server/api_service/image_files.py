"""Image files: decoding what clients send within bounds, encoding what is drawn, and keeping it for a while.

Decoding and encoding take time; call them off the event loop. Knows nothing of HTTP.
"""

from __future__ import annotations

import base64
import binascii
import io
import secrets
import warnings
from collections import OrderedDict
from dataclasses import dataclass

from xllm_framework.errors import InvalidRequest
from xllm_framework.request.image_params import RawImage
from xllm_server.protocol.images import OutputFormat

MEDIA_TYPES: dict[str, str] = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}
READ_FORMATS = ("PNG", "JPEG", "WEBP")
MAX_STORED_BYTES = 256 * 1024 * 1024
MAX_STORED_IMAGES = 1024
DEFAULT_QUALITY = 90


def decode_base64(text: str, param: str) -> bytes:
    """Return the bytes of base64 text or of a data URL.

    Raises:
        InvalidRequest: it is neither; `param` is the argument.
    """
    content = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{param} must be base64 or a data URL of an image.", param) from None


def decode_image(content: bytes, max_pixels: int, param: str, *, is_mask: bool = False) -> RawImage:
    """Return the pixels of a PNG, JPEG or WebP file; its size is checked before anything of it is decoded.

    Args:
        is_mask: return one channel, bright where the file is transparent, or where it is bright if it is opaque.

    Raises:
        InvalidRequest: no such file, a broken one, or one of too many pixels; `param` is the argument.
    """
    from PIL import Image

    broken = InvalidRequest(f"{param} is no PNG, JPEG or WebP file, or a broken one.", param)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are checked here
            image = Image.open(io.BytesIO(content), formats=READ_FORMATS)
    except Exception:  # whatever a decoder raises for a hostile file
        raise broken from None
    if image.width * image.height > max_pixels:
        raise InvalidRequest(
            f"{param} has {image.width}x{image.height} pixels; at most {max_pixels} are taken (dit_max_input_pixels).",
            param,
        )
    try:
        if not is_mask:
            pixels = image.convert("RGB")
        elif image.has_transparency_data:
            pixels = image.convert("RGBA").getchannel("A").point(lambda alpha: 255 - alpha)
        else:
            pixels = image.convert("L")
        return RawImage(pixels.width, pixels.height, pixels.tobytes(), 1 if is_mask else 3)
    except Exception:  # whatever a decoder raises for a hostile file
        raise broken from None


def encode_image(image: RawImage, output_format: OutputFormat, quality: int | None) -> bytes:
    """Return an image as a file."""
    from PIL import Image

    target = io.BytesIO()
    pixels = Image.frombytes("RGB", (image.width, image.height), image.pixels)
    if output_format == "png":
        pixels.save(target, "PNG", compress_level=3)
    else:
        pixels.save(target, output_format.upper(), quality=DEFAULT_QUALITY if quality is None else quality)
    return target.getvalue()


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A file that clients may fetch."""

    content: bytes
    media_type: str


class ImageStore:
    """Keeps files for a while, in bounded memory; the oldest go first. Names cannot be guessed. Event loop only."""

    def __init__(self, max_images: int = MAX_STORED_IMAGES, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_images, self._max_bytes = max_images, max_bytes
        self._num_bytes = 0
        self._images: OrderedDict[str, StoredImage] = OrderedDict()

    def put(self, content: bytes, output_format: OutputFormat) -> str:
        """Keep a file and return its name; one larger than the whole store is not kept."""
        name = f"{secrets.token_urlsafe(18)}.{output_format}"
        self._images[name] = StoredImage(content, MEDIA_TYPES[output_format])
        self._num_bytes += len(content)
        while len(self._images) > self._max_images or self._num_bytes > self._max_bytes:
            _, oldest = self._images.popitem(last=False)
            self._num_bytes -= len(oldest.content)
        return name

    def get(self, name: str) -> StoredImage | None:
        """Return a file, or None when it is not kept (any more)."""
        return self._images.get(name)
