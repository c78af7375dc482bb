"""The page at /: complete, under a policy that lets nothing in from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_server.routes.web import page_files

URL = re.compile(r"""(?:src|href)="([^"]+)"|from "([^"]+)"|url\(([^)]+)\)""")


def get(path: str, **options: Any) -> Answer:
    """Get one path."""
    return serve(lambda app, _: call(app, path), FakeMaster(), **options)


def test_the_page_is_served_with_its_policy() -> None:
    answer = get("/")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("name", sorted(page_files()))
def test_every_file_refers_to_this_server_only(name: str) -> None:
    answer = get(f"/web/{name}")
    assert answer.status == 200
    for match in URL.finditer(answer.body.decode()):
        url = next(group for group in match.groups() if group)
        if url != "data:,":
            assert get(url.replace("./", "/web/")).status == 200, url
    assert b"http://" not in answer.body
    assert b"https://" not in answer.body


def test_no_script_or_style_stands_in_the_page() -> None:
    page = page_files()["index.html"].decode()
    assert not re.search(r"<style|\son\w+=|style=|<script(?![^>]*src=)", page)


def test_models_text_cannot_become_markup() -> None:
    for name, content in page_files().items():
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", content), name


@pytest.mark.parametrize("name", ["none.js", "..%2Fapp.py", "__init__.py", ".."])
def test_nothing_else_is_served(name: str) -> None:
    assert get(f"/web/{name}").status == 404


def test_the_page_asks_for_the_key_as_browsers_understand() -> None:
    answer = get("/", api_key="secret")
    assert answer.status == 401
    assert "Basic realm=" in answer.headers["www-authenticate"]
