"""Runs a scenario against the app over a `FakeMaster`, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from support.fake_master import FakeMaster
from xllm_framework.config import ServiceConfig
from xllm_server.app import build_app
from xllm_server.parsers.model_parsers import ModelParsers
from xllm_server.state import ServerState


def serve(
    scenario: Callable[[Any, ServerState], Coroutine[Any, Any, Any]],
    master: FakeMaster,
    *,
    parsers: ModelParsers | None = None,
    **options: Any,
) -> Any:
    """Run `scenario(app, state)` on a loop of its own; afterwards no request may be in flight."""

    async def run() -> Any:
        state = ServerState.create(master, ServiceConfig(**options), parsers)
        result = await scenario(build_app(state), state)
        assert state.admission.num_in_flight == 0
        assert master.num_in_flight == 0
        state.executor.shutdown()
        return result

    try:
        return asyncio.run(run())
    finally:
        master.close()
