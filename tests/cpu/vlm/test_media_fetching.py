"""What media URLs reach, and what they never reach. Servers of the tests listen on two loopback addresses."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest
from xllm_runtime.processors import addresses, fetching
from xllm_runtime.processors.addresses import is_public
from xllm_runtime.processors.fetching import fetch
from xllm_runtime.processors.media_bytes import MediaBytes
from xllm_runtime.processors.media_parts import MediaSource

TRUSTING = MultimodalConfig(allow_private_media=True, media_timeout=5.0, max_media_bytes=1000)
CAREFUL = MultimodalConfig(media_timeout=5.0, max_media_bytes=1000)
Answer = Callable[[BaseHTTPRequestHandler], None]


class Site:
    """An HTTP server that counts who came."""

    def __init__(self, host: str, answer: Answer) -> None:
        site = self
        self.num_visits = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.num_visits += 1
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://{host}:{self.port}/picture"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def start(answer: Answer, host: str = "127.0.0.1") -> Site:
        sites.append(Site(host, answer))
        return sites[-1]

    yield start
    for started in sites:
        started.server.shutdown()
        started.server.server_close()


def content(body: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def redirect(url: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.fixture
def first_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 127.0.0.1 count as public, and nothing else."""
    monkeypatch.setattr(addresses, "is_public", lambda address: str(address) == "127.0.0.1" or is_public(address))


def allow_port(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(fetching, "PUBLIC_PORTS", {"http": port, "https": 443})


def test_content_comes_through_a_redirect(site: Callable[..., Site]) -> None:
    last = site(content(b"pixels"))
    assert fetch(site(redirect(last.url)).url, TRUSTING, "part") == b"pixels"


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1", "0.0.0.0"),
        *(
            "127.1",
            "2130706433",
            "0x7f000001",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[fe80::1]",
        ),
        *("100.64.0.1", "224.0.0.1", "[ff02::1]", "user@127.0.0.1"),
    ],
)
def test_private_addresses_are_refused_before_any_byte(host: str) -> None:
    with pytest.raises(InvalidRequest, match=r"not public|not known"):
        fetch(f"http://{host}/x.png", CAREFUL, "part")


def test_a_careful_server_visits_nobody_private(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    private = site(content(b"secret"))
    allow_port(monkeypatch, private.port)
    with pytest.raises(InvalidRequest, match="not public"):
        fetch(private.url, CAREFUL, "part")
    assert private.num_visits == 0


@pytest.mark.usefixtures("first_is_public")
def test_b82_a_redirect_to_a_private_address_is_refused(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    private = site(content(b"secret"), "127.0.0.2")
    public = site(redirect(f"http://127.0.0.2:{private.port}/"))
    allow_port(monkeypatch, public.port)
    with pytest.raises(InvalidRequest, match="port"):
        fetch(public.url, CAREFUL, "part")
    public = site(redirect("http://169.254.169.254/latest/meta-data"))
    allow_port(monkeypatch, public.port)
    monkeypatch.setitem(fetching.PUBLIC_PORTS, "https", 443)
    with pytest.raises(InvalidRequest):
        fetch(public.url, CAREFUL, "part")
    assert private.num_visits == 0


@pytest.mark.usefixtures("first_is_public")
@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/", "//127.0.0.2/"])
def test_a_redirect_to_another_scheme_or_host_is_refused(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    public = site(redirect(target))
    allow_port(monkeypatch, public.port)
    with pytest.raises(InvalidRequest):
        fetch(public.url, CAREFUL, "part")


@pytest.mark.usefixtures("first_is_public")
def test_b82_a_name_that_changes_its_address_is_connected_where_it_was_checked(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    public = site(content(b"pixels"))
    allow_port(monkeypatch, public.port)
    answers = iter(["127.0.0.1", "127.0.0.2"])
    resolve = socket.getaddrinfo

    def rebinding(host: str, *args: Any, **kwargs: Any) -> Any:
        return resolve(next(answers) if host == "rebinding.test" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    url = f"http://rebinding.test:{public.port}/"
    assert fetch(url, CAREFUL, "part") == b"pixels"
    with pytest.raises(InvalidRequest, match="not public"):
        fetch(url, CAREFUL, "part")


def test_one_private_address_among_several_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(0, 0, 0, "", (text, 80)) for text in ("93.184.216.34", "10.1.2.3")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(InvalidRequest, match="not public"):
        addresses.checked_addresses("mixed.test", 80, "part")


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_too_many_bytes_end_the_download(site: Callable[..., Site]) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * 500)
        except OSError:
            pass

    with pytest.raises(InvalidRequest, match="max_media_bytes"):
        fetch(site(endless).url, TRUSTING, "part")


@pytest.mark.parametrize("drips_headers", [False, True])
def test_a_server_that_drips_is_given_up_in_time(site: Callable[..., Site], drips_headers: bool) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            if not drips_headers:
                handler.wfile.write(b"\r\n")
            for _ in range(200):
                handler.wfile.write(b"a")
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

    config = MultimodalConfig(allow_private_media=True, media_timeout=0.4)
    with pytest.raises(InvalidRequest, match=r"within 0\.4 s"):
        fetch(site(drip).url, config, "part")


def test_endless_redirects_and_errors_are_refused(site: Callable[..., Site]) -> None:
    with pytest.raises(InvalidRequest, match="redirected"):
        fetch(site(redirect("/again")).url, TRUSTING, "part")

    def missing(handler: BaseHTTPRequestHandler) -> None:
        handler.send_error(404)

    with pytest.raises(InvalidRequest, match="404"):
        fetch(site(missing).url, TRUSTING, "part")


def read(url: str, config: MultimodalConfig) -> object:
    return MediaBytes(config).read(MediaSource("image", "part", url))


def test_files_are_read_under_the_allowed_folder_only(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "a b.png").write_bytes(b"inside")
    (tmp_path / "secret.png").write_bytes(b"outside")
    (allowed / "link.png").symlink_to(tmp_path / "secret.png")
    config = MultimodalConfig(allowed_media_path=str(allowed))
    assert read(f"file://{allowed}/a%20b.png", config) == b"inside"
    assert read(str(allowed / "a b.png"), config) == b"inside"
    assert read("a b.png", config) == b"inside"
    for url in (
        "../secret.png",
        f"file://{tmp_path}/secret.png",
        "link.png",
        f"{allowed}/../secret.png",
        "/etc/passwd",
        "\0",
    ):
        with pytest.raises(InvalidRequest, match="may read"):
            read(url, config)
    with pytest.raises(InvalidRequest, match="reads none"):
        read(f"file://{allowed}/a%20b.png", MultimodalConfig())


@pytest.mark.parametrize("url", ["data:image/png;base64,%%%", "data:image/png;base64", "ftp://a/b", "data:,"])
def test_broken_urls_are_refused_or_empty(url: str) -> None:
    if url == "data:,":
        assert read(url, CAREFUL) == b""
    else:
        with pytest.raises(InvalidRequest):
            read(url, CAREFUL)


def test_large_data_urls_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="larger"):
        read("data:image/png;base64," + "A" * 10_000, CAREFUL)
