"""A Unix socket that hosts of the same user attach to. Knows nothing of how the engine behind it was made."""

from __future__ import annotations

import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from xllm_capi.connection import Connection
from xllm_capi.messages import PROTOCOL_VERSION, Failed, Start
from xllm_capi.session import Session
from xllm_framework.errors import InvalidConfig

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster

_BACKLOG = 64


class Listener:
    """Owns the socket file at `path`, which only this user can open.

    The folder is made, with access for this user alone, where it does not exist. A socket that a dead engine has left is
    replaced.

    Raises:
        InvalidConfig: the path is taken by something else, or cannot be used.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path.removeprefix("unix:"))
        self._wake_receive, self._wake_send = socket.socketpair()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sessions: set[Session] = set()
        self._reason: str | None = None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_stale()
            before = os.umask(0o177)
            try:
                self._socket.bind(str(self.path))
            finally:
                os.umask(before)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._close_sockets()
            raise InvalidConfig(f"The socket {self.path} cannot be made: {error}.") from error
        except InvalidConfig:
            self._close_sockets()
            raise

    def serve(self, master: LLMMaster, num_threads: int) -> str | None:
        """Serve every host that attaches until `stop`; return None then, or why the engine has failed."""
        master.on_engine_failure(self._on_failure)
        pool = ThreadPoolExecutor(num_threads, "xllm-capi-prepare")
        accepting = threading.Thread(target=self._accept, args=(master, pool), name="xllm-capi-accept", daemon=True)
        accepting.start()
        self._wake_receive.recv(1)
        return self._reason

    def stop(self) -> None:
        """Make `serve` return. Any thread, also a signal handler."""
        self._wake_send.send(b"x")

    def close(self) -> None:
        """Take no more hosts and remove the socket file."""
        self._close_sockets()
        self.path.unlink(missing_ok=True)

    def _close_sockets(self) -> None:
        for owned in (self._socket, self._wake_receive, self._wake_send):
            owned.close()

    def _on_failure(self, reason: str) -> None:
        self._reason = reason
        for session in list(self._sessions):
            session.fail(reason)
        self.stop()

    def _accept(self, master: LLMMaster, pool: ThreadPoolExecutor) -> None:
        while True:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                return
            arguments = (Connection(stream), master, pool)
            threading.Thread(target=self._serve_host, args=arguments, name="xllm-capi-host", daemon=True).start()

    def _serve_host(self, connection: Connection, master: LLMMaster, pool: ThreadPoolExecutor) -> None:
        refusal = _refusal(connection)
        if refusal is not None:
            connection.send(refusal)
            connection.close()
            return
        session = Session(connection, master, pool)
        self._sessions.add(session)
        try:
            session.run()
        finally:
            self._sessions.discard(session)

    def _remove_stale(self) -> None:
        """Remove a socket at the path that nobody listens to any more."""
        try:
            is_socket = stat.S_ISSOCK(self.path.lstat().st_mode)
        except FileNotFoundError:
            return
        if not is_socket:
            raise InvalidConfig(f"{self.path} exists and is no socket.")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
                return
        raise InvalidConfig(f"Another engine listens at {self.path} already.")


def _refusal(connection: Connection) -> Failed | None:
    """Return why the host at the other end is not served, if so."""
    if not connection.is_same_user():
        return Failed("invalid_config", "This engine serves processes of its own user only.")
    try:
        start = connection.receive()
    except msgspec.DecodeError:
        start = None
    if not isinstance(start, Start) or start.protocol_version != PROTOCOL_VERSION:
        return Failed(
            "invalid_config", f"This engine speaks protocol version {PROTOCOL_VERSION}, the host another one."
        )
    return None
