"""POST /pause, /resume, /sleep, /wakeup, /start_profile, /stop_profile: what changes the server for everybody."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from xllm_framework.errors import EngineDead, InvalidRequest
from xllm_server.errors import Unimplemented
from xllm_server.limits import read_body
from xllm_server.ports import ProfiledMaster
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
    _add_pausing(router, state)
    _add_profiling(router, state)

    @router.post("/sleep")
    @router.post("/wakeup")
    async def sleep() -> Response:
        """Not there yet."""
        raise Unimplemented("This server cannot release a model's memory and restore it yet; end the process instead.")

    return router


def _add_pausing(router: APIRouter, state: ServerState) -> None:
    """Add what stops the engine and lets it go on; a newer wish ends the waiting of older ones."""
    num_wishes = itertools.count(1)
    newest_wish = 0

    @router.post("/pause", openapi_extra=json_body(PauseRequest, is_required=False))
    async def pause(http: Request) -> Response:
        """Stop computing, and answer once that is so; new requests wait for /resume."""
        body = decode_request(await read_body(http, state.config.max_body_bytes) or b"{}", PauseRequest)
        state.master.pause(body.mode)
        return await reached("paused")

    @router.post("/resume")
    async def resume() -> Response:
        """Go on."""
        state.master.resume()
        return await reached("running")

    async def reached(wanted: str) -> Response:
        """Wait until the engine is as wanted, or until somebody wants something else."""
        nonlocal newest_wish
        wish = newest_wish = next(num_wishes)
        while (status := state.master.stats.pause_state) != wanted and wish == newest_wish:
            if state.health() is not None:
                return JSONResponse({"status": status}, 503)
            await asyncio.sleep(POLL_S)
        return JSONResponse({"status": status})


def _add_profiling(router: APIRouter, state: ServerState) -> None:
    """Add what begins and ends the recording of a profile."""

    @router.post("/start_profile")
    async def start_profile() -> Response:
        """Begin to record what the engine does."""
        return await changed(lambda master: master.start_profile())

    @router.post("/stop_profile")
    async def stop_profile() -> Response:
        """End the recording, and answer where it was written."""
        return await changed(lambda master: master.stop_profile())

    async def changed(change: Callable[[ProfiledMaster], None]) -> Response:
        """Ask for a change and wait for what becomes of it."""
        if not isinstance(state.master, ProfiledMaster):
            raise Unimplemented("The engine of this model records no profiles.")
        number = state.master.stats.profile.number
        change(state.master)
        while (profile := state.master.stats.profile).number == number:
            if (reason := state.health()) is not None:
                raise EngineDead(reason)
            await asyncio.sleep(POLL_S)
        if profile.error:
            raise InvalidRequest(profile.error)
        content = {"status": "profiling" if profile.is_running else "stopped", "kind": profile.kind}
        return JSONResponse(content | ({"path": profile.path} if profile.path else {}))
