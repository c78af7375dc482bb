"""The user's key and the operator's: what each opens, and the ways to send one."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from support.asgi import call
from support.fake_master import FakeMaster
from support.serve_fake import serve

BOTH = {"api_key": "user", "control_key": "operator"}


def status(path: str, options: dict[str, str], method: str = "GET", **headers: str) -> int:
    """Return the status of one request."""
    how: dict[str, Any] = {"method": method, "headers": headers}
    return serve(lambda app, _: call(app, path, **how), FakeMaster(), **options).status


def basic(key: str) -> str:
    """Return what a browser sends for a password."""
    return "Basic " + base64.b64encode(f"anyone:{key}".encode()).decode()


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer user"}, {"Authorization": basic("user")}, {"X-Api-Key": "user"}]
)
def test_ways_to_send_a_key(headers: dict[str, str]) -> None:
    assert status("/version", BOTH, **headers) == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Basic user"}, {"Authorization": basic("x")}, {"X-Api-Key": ""}, {"Authorization": "user"}],
)
def test_what_is_no_key(headers: dict[str, str]) -> None:
    assert status("/version", BOTH, **headers) == 401


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/wakeup", "/start_profile", "/stop_profile"])
def test_control_routes_want_the_operators_key(path: str) -> None:
    assert status(path, BOTH, "POST") == 401
    assert status(path, BOTH, "POST", Authorization="Bearer user") == 401
    assert status(path, BOTH, "POST", Authorization="Bearer operator") not in (401, 403, 404)
    assert status(path, {"api_key": "user"}, "POST", Authorization="Bearer user") == 403
    assert status(path, {"control_key": "operator"}, "POST") == 401
    assert status(path, {}, "POST") not in (401, 403, 404)


def test_the_operators_key_opens_everything() -> None:
    assert status("/version", BOTH, Authorization="Bearer operator") == 200
    assert status("/version", {"control_key": "operator"}) == 200


def test_every_route_but_health_asks_for_a_key() -> None:
    async def scenario(app: Any, _: Any) -> None:
        routes = [(path, method.upper()) for path, methods in app.openapi()["paths"].items() for method in methods]
        assert len(routes) > 20
        for path, method in [*routes, ("/", "GET"), ("/web/app.js", "GET"), ("/openapi.json", "GET"), ("/docs", "GET")]:
            answer = await call(app, path, b"{}", method=method)
            assert (answer.status == 401) is (path != "/health"), path

    serve(scenario, FakeMaster(), api_key="secret")
