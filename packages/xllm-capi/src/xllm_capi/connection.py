"""A Unix stream socket that carries framed messages. Knows nothing of what the messages ask for."""

from __future__ import annotations

import os
import socket
import struct
import threading

import msgspec

from xllm_capi.messages import MAX_FRAME_SIZE, ToEngine, ToHost

_HEADER = struct.Struct("<I")
_RECEIVE_SIZE = 256 << 10
_UCRED = struct.Struct("iII")


class Connection:
    """Read by one thread, written by any."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._buffer = bytearray()
        self._send_lock = threading.Lock()
        self._unsent = bytearray()

    def is_same_user(self) -> bool:
        """Whether the process at the other end runs under this process's user."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _, user_id, _ = _UCRED.unpack(credentials)
        return bool(user_id == os.geteuid())

    def receive(self) -> ToEngine | None:
        """Return the next message, or None at the end of the stream.

        Raises:
            msgspec.DecodeError: the bytes are no message of this protocol.
        """
        while True:
            if len(self._buffer) >= _HEADER.size:
                (size,) = _HEADER.unpack_from(self._buffer)
                if size > MAX_FRAME_SIZE:
                    raise msgspec.DecodeError(f"A frame of {size} bytes is above the limit of {MAX_FRAME_SIZE}.")
                end = _HEADER.size + size
                if len(self._buffer) >= end:
                    frame = bytes(memoryview(self._buffer)[_HEADER.size : end])
                    del self._buffer[:end]
                    return self._decoder.decode(frame)
            try:
                received = self._socket.recv(_RECEIVE_SIZE)
            except OSError:
                return None
            if not received:
                return None
            self._buffer += received

    def send(self, message: ToHost) -> bool:
        """Send one message, waiting for room; False when the other end is gone."""
        with self._send_lock:
            frame = self._unsent + self._frame(message)
            self._unsent.clear()
            try:
                self._socket.sendall(frame)
            except OSError:
                return False
            return True

    def offer(self, message: ToHost) -> bool:
        """Take one message if no other thread is sending, and send what needs no waiting; False if it was not taken.

        What is left of a message that was taken goes out with the next `send`; see `has_unsent`.
        """
        if not self._send_lock.acquire(blocking=False):
            return False
        try:
            self._unsent += self._frame(message)
            num_sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            del self._unsent[:num_sent]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # nobody will read it; the reading side sees the end
        finally:
            self._send_lock.release()
        return True

    @property
    def has_unsent(self) -> bool:
        """Whether part of a message waits for the next `send`."""
        return bool(self._unsent)

    def _frame(self, message: ToHost) -> bytearray:
        frame = bytearray(_HEADER.size)
        self._encoder.encode_into(message, frame, _HEADER.size)
        _HEADER.pack_into(frame, 0, len(frame) - _HEADER.size)
        return frame

    def shut_down(self) -> None:
        """End both directions, which wakes a thread inside `receive`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
