"""Decodes videos: which kind a file is, which frames are taken of it, and those frames, one after the other.

Every byte is hostile. Only self-contained kinds of files are opened, each with its own demuxer: none that reads a list of
other files or URLs. Knows nothing of models beyond the frames that they ask for.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidRequest
from xllm_runtime.processors.image_file import check_pixels

MAX_FRAMES = 20_000
"""Frames of a file, taken or not, at most: all before the last one taken have to be decoded."""
FALLBACK_FPS = 24.0

FrameIndices = Callable[[int, float], list[int]]
"""(number of frames, frames a second) -> rising indices of the frames to take."""


@dataclass(frozen=True, slots=True)
class VideoShape:
    """What is known of a video before its frames are decoded."""

    num_frames: int
    fps: float
    height: int
    width: int
    indices: list[int]
    """Of the frames that are taken."""


def video_container(content: bytes, place: str) -> str:
    """Return the name of the demuxer of a video file, by its first bytes.

    Raises:
        InvalidRequest: it is none of the known kinds; names `place`.
    """
    if content[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free"):
        return "mov"
    if content[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if content[:4] == b"RIFF" and content[8:12] == b"AVI ":
        return "avi"
    raise InvalidRequest(f"{place} is no video of the kinds MP4, MOV, WebM, MKV, AVI.", "messages")


class VideoFile:
    """A video in memory; use it in a `with` statement.

    Raises:
        InvalidRequest: it is no video, has too many frames or pixels, or is broken; names `place`.
    """

    def __init__(self, content: bytes, max_pixels: int, place: str) -> None:
        import av

        self._place = place
        demuxer = video_container(content, place)
        try:
            self._container: Any = av.open(io.BytesIO(content), mode="r", format=demuxer, metadata_errors="ignore")
            streams: list[Any] = [stream for stream in self._container.streams if stream.type == "video"]
            stream = streams[0] if streams else None
            if stream is None:
                raise InvalidRequest(f"{place} has no pictures.", "messages")
            stream.thread_count = 1
            self._stream = stream
            self.height, self.width = int(stream.codec_context.height), int(stream.codec_context.width)
            check_pixels(self.width, self.height, max_pixels, place)
            self.fps = float(stream.average_rate or FALLBACK_FPS)
            self.num_frames = int(stream.frames) or self._count_frames()
        except InvalidRequest:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise self._broken(error) from error
        if not 1 <= self.num_frames <= MAX_FRAMES:
            self.close()
            raise InvalidRequest(f"{place} has {self.num_frames} frames; {MAX_FRAMES} is the limit.", "messages")

    def shape(self, choose: FrameIndices) -> VideoShape:
        """Return what the video is like, and which frames `choose` takes."""
        indices = choose(self.num_frames, self.fps)
        return VideoShape(self.num_frames, self.fps, self.height, self.width, indices)

    def frames(self, shape: VideoShape) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the frames of `shape.indices` as uint8 [height, width, 3], decoding one after the other.

        Raises:
            InvalidRequest: the file breaks off before the last one, or its pictures change size.
        """
        wanted = iter(shape.indices)
        index = next(wanted, None)
        try:
            for number, frame in enumerate(self._container.decode(self._stream)):
                if (frame.height, frame.width) != (self.height, self.width):
                    raise InvalidRequest(f"{self._place} changes the size of its pictures.", "messages")
                picture = frame.to_ndarray(format="rgb24") if number == index else None
                while picture is not None and number == index:
                    yield picture
                    index = next(wanted, None)
                if index is None:
                    return
        except InvalidRequest:
            raise
        except Exception as error:
            raise self._broken(error) from error
        raise InvalidRequest(f"{self._place} breaks off before its frame {index}.", "messages")

    def close(self) -> None:
        """Let the file go."""
        container = getattr(self, "_container", None)
        if container is not None:
            container.close()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count_frames(self) -> int:
        """Return the packets of the stream, at most one more than are allowed, and go back to the begin."""
        count = 0
        for packet in self._container.demux(self._stream):
            count += packet.size > 0
            if count > MAX_FRAMES:
                break
        self._container.seek(0)
        return count

    def _broken(self, error: Exception) -> InvalidRequest:
        return InvalidRequest(f"{self._place} is a broken video: {type(error).__name__}: {error}.", "messages")
