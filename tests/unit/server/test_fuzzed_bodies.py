"""No body whatsoever is a 5xx: known fields with any JSON value are served or refused by name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.asgi import call
from support.fake_master import FakeMaster
from xllm_framework.config import ServiceConfig
from xllm_server.app import build_app
from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.completion import CompletionRequest
from xllm_server.state import ServerState

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(-3, 3)
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(["none", "auto", "text", "user", "org/fake"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("65"), inner, max_size=3),
    max_leaves=6,
)
ROUTES = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "hi"}),
}


@pytest.mark.parametrize("path", ROUTES)
def test_no_body_is_a_server_error(path: str) -> None:
    request_type, least = ROUTES[path]
    names = [*msgspec.structs.fields(request_type)]
    fields = st.dictionaries(st.sampled_from([field.name for field in names]), VALUES, max_size=4)
    master = FakeMaster()
    with asyncio.Runner() as runner:
        state = runner.run(_state(master))
        app = build_app(state)

        @settings(max_examples=200, deadline=None)
        @given(fields, st.booleans())
        def check(content: dict[str, Any], keeps_least: bool) -> None:
            body = json.dumps((least if keeps_least else {}) | content).encode()
            answer = runner.run(call(app, path, body))
            assert answer.status < 500, answer.body
            if answer.status != 200:
                param = answer.error["param"]
                assert param is None or param.split(".")[0].split("[")[0] in {field.name for field in names}
            assert state.admission.num_in_flight == 0

        check()
        state.executor.shutdown()
    master.close()


async def _state(master: FakeMaster) -> ServerState:
    return ServerState.create(master, ServiceConfig())
