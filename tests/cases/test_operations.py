"""Public cases, section 2.8: operations."""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from xllm_script_model import RAISE, SLOW, script

from support.server_process import ServerProcess, eventually

REASONS = ("stop", "length", "abort", "error")


def test_b75_counters_never_step_back(small_server: ServerProcess) -> None:
    """Preemptions and aborts under load, with a scrape between."""
    is_done = threading.Event()
    readings: list[dict[str, float]] = []

    def scrape() -> None:
        while not is_done.wait(0.02):
            readings.append(small_server.metrics())

    def load(number: int) -> None:
        body = {"prompt": f"{number:02d}{script(*range(40, 70))}", "max_tokens": 40, "ignore_eos": True}
        if number % 3 == 0:
            small_server.hang_up_during("/v1/completions", body | {"stream": True}, after_bytes=400)
        else:
            assert small_server.client.post("/v1/completions", json=body).status_code == 200

    scraper = threading.Thread(target=scrape)
    scraper.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(load, range(24)))
    is_done.set()
    scraper.join()
    assert len(readings) > 3
    counters = [name for name in readings[0] if name.split(",")[0].endswith(("_total", "_count"))]
    assert counters
    for earlier, later in itertools.pairwise(readings):
        for name in counters:
            assert later.get(name, 0) >= earlier.get(name, 0), name
    small_server.assert_alive()


def test_b77_a_mixed_crowd_leaves_the_counts_right(server: ServerProcess) -> None:
    before = server.metrics()
    draw = random.Random(77)

    def one(number: int) -> str:
        kind = draw.choice(["good", "good", "bad", "failing", "leaving"])
        if kind == "leaving":
            body = {"prompt": script(SLOW, *[b"x"] * 120), "max_tokens": 120, "stream": True}
            server.hang_up_during("/v1/completions", body, after_bytes=300)
        else:
            fields = {"good": {}, "bad": {"temperature": 9}, "failing": {"prompt": script(b"a", RAISE)}}[kind]
            body = {"prompt": script(b"a", b"b"), **fields}
            status = server.client.post("/v1/completions", json=body).status_code
            assert status == {"good": 200, "bad": 400, "failing": 500}[kind]
        return kind

    with ThreadPoolExecutor(8) as pool:
        kinds = list(pool.map(one, range(300)))
    eventually(server.is_idle)
    after = server.metrics()
    new = {name: after[name] - before.get(name, 0) for name in after}
    assert new["xllm:request_success_total,stop"] == kinds.count("good")
    assert new["xllm:request_success_total,error"] == kinds.count("failing")
    assert new["xllm:request_success_total,abort"] == kinds.count("leaving")
    assert new["xllm:requests_total"] == sum(new[f"xllm:request_success_total,{reason}"] for reason in REASONS)
    assert after["xllm:num_requests_in_flight"] == 0


def test_b78_health_beside_long_prompts(server: ServerProcess) -> None:
    """The bounds are wide because other tests may share the cores; alone, every reading is a few milliseconds."""
    with ThreadPoolExecutor(16) as pool:
        work = [pool.submit(server.complete, f"{number} " + "long prompt " * 50, max_tokens=1) for number in range(200)]
        readings = []
        with httpx.Client(base_url=server.base_url, timeout=10) as probe:
            while not all(future.done() for future in work):
                start = time.perf_counter()
                assert probe.get("/health").status_code == 200
                readings.append(time.perf_counter() - start)
                time.sleep(0.1)
        assert all(future.result().status_code == 200 for future in work)
    assert statistics.median(readings) < 0.1
    assert max(readings) < 5


def stream_text(base_url: str, started: threading.Semaphore | None = None) -> str:
    """Stream a chat that takes a second or two; release `started` with the first token; return the text."""
    content = {"messages": [{"role": "user", "content": script(SLOW, *[b"x"] * 60)}], "stream": True}
    text = ""
    with httpx.stream("POST", f"{base_url}/v1/chat/completions", json=content, timeout=60) as answer:
        for line in answer.iter_lines():
            if line and line != "data: [DONE]":
                chunk: Any = ServerProcess.event(line)
                for choice in chunk["choices"]:
                    if not text and choice["delta"].get("content") and started is not None:
                        started.release()
                    text += choice["delta"].get("content") or ""
    return text


def test_b80_sigterm_lets_running_streams_end() -> None:
    with ServerProcess() as process, ThreadPoolExecutor(3) as pool:
        started = threading.Semaphore(0)
        streams = [pool.submit(stream_text, process.base_url, started) for _ in range(3)]
        for _ in streams:
            assert started.acquire(timeout=30)
        process.signal(signal.SIGTERM)
        eventually(lambda: process.client.get("/health").status_code == 503)
        late = process.chat(script("late"))
        assert late.status_code == 503
        assert "retry-after" in late.headers
        assert [stream.result() for stream in streams] == ["x" * 60] * 3
        assert process.wait() == 0
        assert "Traceback" not in process.errors


def test_b80_a_second_signal_ends_at_once() -> None:
    with ServerProcess() as process:
        engine = process.engine_pid()
        started = threading.Semaphore(0)
        with ThreadPoolExecutor(1) as pool:
            endless = pool.submit(_read_until_cut, process.base_url, started)
            assert started.acquire(timeout=30)
            process.signal(signal.SIGTERM)
            eventually(lambda: process.client.get("/health").status_code == 503)
            process.signal(signal.SIGINT)
            assert process.wait(10) == 128 + signal.SIGINT
            endless.result()
        eventually(lambda: not _is_running(engine))


def _read_until_cut(base_url: str, started: threading.Semaphore) -> None:
    """Stream a very long answer until the server is gone."""
    content = {"prompt": script(SLOW, b"x"), "stream": True, "max_tokens": 3000, "ignore_eos": True}
    try:
        with httpx.stream("POST", f"{base_url}/v1/completions", json=content, timeout=60) as answer:
            for _ in answer.iter_lines():
                started.release()
    except httpx.HTTPError:
        return


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_b84_every_route_without_a_key(strict_server: ServerProcess) -> None:
    paths = strict_server.client.get("/openapi.json").json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(routes) >= 6
    with httpx.Client(base_url=strict_server.base_url) as stranger:
        for method, path in [*routes, ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/none")]:
            url = path.replace("{model_id}", "x")
            expected = 200 if path == "/health" else 401
            assert stranger.request(method, url).status_code == expected, path
            wrong = stranger.request(method, url, headers={"Authorization": "Bearer wrong"})
            assert wrong.status_code == expected, path
    assert strict_server.client.get("/v1/models").status_code == 200
