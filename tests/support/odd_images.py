"""Twenty image files of odd kinds, and broken ones. Knows nothing of who reads them."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import PIL.Image

from support.tiny_vision import picture


def encoded(image: PIL.Image.Image, kind: str, **options: object) -> bytes:
    """Return the file of a picture."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def odd_images() -> dict[str, bytes]:
    """Return the files by name; all but the last can be processed."""
    base = picture(3, 123, 77)
    alpha = base.convert("RGBA")
    alpha.putalpha(PIL.Image.fromarray(np.linspace(0, 255, 123 * 77).reshape(77, 123).astype(np.uint8)))
    deep = PIL.Image.fromarray((np.arange(90 * 60).reshape(60, 90) * 12).astype(np.uint16))
    palette = base.quantize(16)
    frames = [picture(seed, 64, 48) for seed in range(3)]
    files = {
        "odd size": encoded(picture(1, 97, 61), "PNG"),
        "one pixel": encoded(picture(1, 1, 1), "PNG"),
        "tiny": encoded(picture(2, 5, 9), "PNG"),
        "wide": encoded(picture(3, 900, 6), "PNG"),
        "tall": encoded(picture(4, 7, 800), "PNG"),
        "large": encoded(picture(5, 1500, 1100), "JPEG"),
        "exact multiple": encoded(picture(6, 112, 84), "PNG"),
        "RGBA": encoded(alpha, "PNG"),
        "grey": encoded(base.convert("L"), "PNG"),
        "grey with alpha": encoded(alpha.convert("LA"), "PNG"),
        "black and white": encoded(base.convert("1"), "PNG"),
        "sixteen bits": encoded(deep, "PNG"),
        "palette": encoded(palette, "PNG"),
        "transparent palette": encoded(palette, "PNG", transparency=3),
        "CMYK": encoded(base.convert("CMYK"), "JPEG"),
        "progressive": encoded(base, "JPEG", progressive=True, quality=60),
        "animated GIF": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "lossless WebP": encoded(base, "WEBP", lossless=True),
        "bitmap": encoded(base, "BMP"),
    }
    for orientation in (3, 6, 7):
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        files[f"EXIF {orientation}"] = encoded(base, "JPEG", exif=exif)
    return {**files, "1 x 2000": encoded(picture(7, 1, 2000), "PNG")}


def fuzzed_images(count: int) -> Iterator[bytes]:
    """Yield broken, cut and lying files, the same at every call."""
    generator = random.Random(7)
    seeds = list(odd_images().values())[:-1]
    for index in range(count):
        content = bytearray(generator.choice(seeds))
        kind = index % 4
        if kind == 0:
            content = content[: generator.randrange(len(content))]
        elif kind == 1:
            for _ in range(generator.randint(1, 30)):
                content[generator.randrange(len(content))] = generator.randrange(256)
        elif kind == 2:
            start = generator.randrange(len(content))
            content[start : start + 8] = generator.randbytes(8)
            content += generator.randbytes(50)
        else:
            content[: generator.randint(8, 64)] = b"\xff" * generator.randint(0, 64)
        yield bytes(content)


@cache
def bombs() -> dict[str, bytes]:
    """Return small files that say they are huge pictures."""
    huge = encoded(PIL.Image.new("1", (30000, 30000)), "PNG")
    header = bytearray(encoded(picture(1, 8, 8), "BMP"))
    header[18:26] = (2_000_000_000).to_bytes(4, "little") * 2
    gif = bytearray(encoded(picture(1, 8, 8), "GIF"))
    gif[6:10] = b"\xff\xff\xff\xff"
    return {"PNG": huge, "BMP": bytes(header), "GIF": bytes(gif)}
