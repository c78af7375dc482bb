"""Bodies made from the OpenAPI document, against the real server: whatever comes, no answer is a server's fault.

A few cases an operation here; `XLLM_FUZZ_CASES=2000 pytest tests/cpu/server/test_openapi_fuzz.py` spreads that many.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from support.server_process import ServerProcess

NUM_CASES = int(os.environ.get("XLLM_FUZZ_CASES", "160"))
LEFT_OUT = {"/pause", "/resume", "/sleep", "/wakeup"}
"""What stops the server for everybody, and what answers 501 by design."""
MAX_TOKENS = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8}


def test_no_body_is_the_servers_fault() -> None:
    counts: Counter[str] = Counter()
    with ServerProcess("--tool-call-parser", "hermes", "--reasoning-parser", "think") as server:
        schema = schemathesis.openapi.from_url(f"{server.base_url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        operations = [operation for operation in operations if operation.path not in LEFT_OUT]
        with_bodies = [operation for operation in operations if operation.method.upper() == "POST"]
        assert len(with_bodies) >= 8
        for operation in operations:
            has_body = operation in with_bodies
            _send_many(server, operation, max(2, NUM_CASES // len(with_bodies)) if has_body else 2, counts)
        server.assert_alive()
    assert counts["200"] > 0
    assert counts["400"] > 0
    assert sum(counts.values()) >= NUM_CASES // 2


def _send_many(server: ServerProcess, operation: Any, num_cases: int, counts: Counter[str]) -> None:
    @settings(
        max_examples=num_cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body |= {name: value for name, value in MAX_TOKENS.items() if name in case.body}
            if case.body.get("n"):
                case.body["n"] = 1
        answer = _call(server, case)
        counts[str(answer.status_code)] += 1
        assert answer.status_code < 500, (case.formatted_path, case.body, answer.text)

    send()


def _call(server: ServerProcess, case: Any) -> httpx.Response:
    request = case.as_transport_kwargs(base_url=server.base_url)
    return server.client.request(
        request["method"],
        request["url"],
        json=request.get("json"),
        content=request.get("data"),
        params=request.get("params"),
    )
