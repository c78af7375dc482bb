"""Decodes image files. Every byte of them is hostile: sizes are read from headers first, any failure is the client's.

Knows nothing of where files come from or what becomes of pictures.
"""

from __future__ import annotations

import io
import warnings

import PIL.Image
import PIL.ImageOps

from xllm_framework.errors import InvalidRequest

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Kinds of files that are tried; others have decoders that are rarely used and rarely tested."""


def decode_image(content: bytes, max_pixels: int, place: str) -> PIL.Image.Image:
    """Return the picture in RGB, upright as its EXIF data says; of an animation the first one.

    An alpha channel is dropped, and a transparent colour becomes white, as models' own processors have it.

    Raises:
        InvalidRequest: it is no image of a known kind, is broken, or has more than `max_pixels`; names `place`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image = PIL.Image.open(io.BytesIO(content), formats=FORMATS)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise InvalidRequest(f"{place} has too many pixels: {error}", "messages") from error
    except Exception as error:
        raise InvalidRequest(f"{place} is no image of the kinds {', '.join(FORMATS)}.", "messages") from error
    with image:
        check_pixels(image.width, image.height, max_pixels, place)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return upright(image)
        except Exception as error:
            raise InvalidRequest(f"{place} is a broken image: {type(error).__name__}: {error}.", "messages") from error


def upright(image: PIL.Image.Image) -> PIL.Image.Image:
    """Return a picture in RGB, turned as its EXIF data says. Raises what Pillow raises."""
    image.load()
    image = PIL.ImageOps.exif_transpose(image).convert("RGB")
    if image.info.get("transparency") is None:
        return image
    white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
    return PIL.Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def check_pixels(width: int, height: int, max_pixels: int, place: str) -> None:
    """Raise `InvalidRequest` unless a picture of this size may be decoded."""
    if width < 1 or height < 1 or width * height > max_pixels:
        raise InvalidRequest(f"{place} is {width} x {height} pixels; {max_pixels} is the limit.", "messages")
