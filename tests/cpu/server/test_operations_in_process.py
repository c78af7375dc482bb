"""Operations on a real server: pausing, TLS, sampling marked places."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from xllm_script_model import SLOW, script

from support.server_process import ServerProcess, eventually


def test_a_pause_keeps_what_runs(server: ServerProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        prompt = script(SLOW, *[b"x"] * 30)
        alone = server.complete(prompt, max_tokens=30, temperature=0).json()["choices"][0]["text"]
        running = pool.submit(server.complete, prompt, max_tokens=30, temperature=0)
        eventually(lambda: server.metrics()["xllm:num_requests_running"] == 1)
        assert server.client.post("/pause").json() == {"status": "paused"}
        values = server.metrics()
        assert (values["xllm:num_requests_running"], values["xllm:engine_paused"]) == (0, 1)
        assert not running.done()
        assert server.client.post("/resume").json() == {"status": "running"}
        assert running.result().json()["choices"][0]["text"] == alone


def test_marked_places_are_scored(server: ServerProcess) -> None:
    body = {"prompt": "a#b#", "selector": {"type": "literal", "value": "#"}, "logprobs": 2}
    answer = server.client.post("/v1/sample", json=body)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for choice in choices:
        first, second = choice["logprobs"]["token_logprobs"]
        assert second <= first <= 0
        assert choice["text"] == choice["logprobs"]["tokens"][0]
    echo = {"prompt": body["prompt"], "echo": True, "max_tokens": 0, "logprobs": 2}
    scored = server.client.post("/v1/completions", json=echo).json()["choices"][0]["logprobs"]
    place = scored["text_offset"].index(1)
    best = max(scored["top_logprobs"][place].values())
    assert choices[0]["logprobs"]["token_logprobs"][0] == pytest.approx(best, abs=1e-4)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    with ServerProcess("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)) as process:
        assert process.base_url.startswith("https://")
        with httpx.Client(verify=ssl.create_default_context(cafile=certificate)) as client:
            assert client.get(f"{process.base_url}/health").json() == {"status": "ok"}
