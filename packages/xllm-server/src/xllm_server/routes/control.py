"""POST /pause, /resume, /sleep, /wakeup, /start_profile, /stop_profile: what changes the server for everybody."""

from __future__ import annotations

import asyncio
import itertools
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from xllm_server.errors import Unimplemented
from xllm_server.limits import read_body
from xllm_server.protocol.decode import decode_request
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState

POLL_S = 0.01


class PauseRequest(msgspec.Struct):
    """Body of /pause; may be left out."""

    mode: Literal["keep", "abort", "wait"] = "keep"
    """What becomes of running requests: keep computes them anew after /resume, abort ends them, wait lets them finish."""


def control_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["control"])
    num_wishes = itertools.count(1)
    newest_wish = 0

    @router.post("/pause", openapi_extra=json_body(PauseRequest, is_required=False))
    async def pause(http: Request) -> Response:
        """Stop computing, and answer once that is so; new requests wait for /resume."""
        body = decode_request(await read_body(http, state.config.max_body_bytes) or b"{}", PauseRequest)
        state.master.pause(body.mode)
        return await _status("paused")

    @router.post("/resume")
    async def resume() -> Response:
        """Go on."""
        state.master.resume()
        return await _status("running")

    async def _status(wanted: str) -> Response:
        """Wait until the engine is as wanted, or until somebody wants something else."""
        nonlocal newest_wish
        wish = newest_wish = next(num_wishes)
        while (status := state.master.stats.pause_state) != wanted and wish == newest_wish:
            if state.health() is not None:
                return JSONResponse({"status": status}, 503)
            await asyncio.sleep(POLL_S)
        return JSONResponse({"status": status})

    @router.post("/sleep")
    @router.post("/wakeup")
    async def sleep() -> Response:
        """Not there yet."""
        raise Unimplemented("This server cannot release a model's memory and restore it yet; end the process instead.")

    @router.post("/start_profile")
    @router.post("/stop_profile")
    async def profile() -> Response:
        """Not there yet."""
        raise Unimplemented(
            "This server records no profile yet; attach py-spy or Nsight Systems to its engine process."
        )

    return router
