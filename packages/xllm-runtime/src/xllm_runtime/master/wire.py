"""Messages as bytes: a length (4 bytes, little endian), then msgpack. Knows nothing of who sends what, or when."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """Return one framed message."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return bytes(buffer)


def read_messages(connection: socket.socket, message_type: Any) -> Iterator[Any]:
    """Yield the messages of `message_type` (a union of tagged structs) until the other end closes or dies."""
    decoder = msgspec.msgpack.Decoder(message_type)
    with connection.makefile("rb", buffering=1 << 16) as stream:
        while True:
            try:
                head = stream.read(_LENGTH.size)
                body = stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
            except OSError:  # reset: the other end died with bytes unread
                return
            if len(head) < _LENGTH.size or len(body) < _LENGTH.unpack(head)[0]:
                return
            yield decoder.decode(body)
