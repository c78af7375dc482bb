"""The page at / in a real browser, where one is installed: streams, stops, shows reasoning, calls and the live panel."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from support.browser import CHROMIUM, Browser
from support.fake_master import FakeMaster
from xllm_framework.config import ModelConfig, ServiceConfig
from xllm_server.app import build_app
from xllm_server.parsers.model_parsers import ModelParsers
from xllm_server.state import ServerState

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
REPLY = b'<think>so</think>Hi <b>you</b>\n```\ncode\n```<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ANSWER = "document.querySelector('.assistant:last-child')"


@pytest.fixture(scope="module")
def master() -> Iterator[FakeMaster]:
    """A master whose answers think, say and call."""
    fake = FakeMaster(REPLY)
    yield fake
    fake.close()


@pytest.fixture(scope="module")
def address(master: FakeMaster) -> Iterator[str]:
    """A server on a free port."""
    started: list[uvicorn.Server] = []

    async def serve() -> None:
        parsers = ModelParsers.choose(ModelConfig(tool_call_parser="hermes", reasoning_parser="think"), "", "")
        state = ServerState.create(master, ServiceConfig(), parsers)
        server = uvicorn.Server(uvicorn.Config(build_app(state), port=0, log_level="warning", ws="none"))
        started.append(server)
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    while not (started and started[0].started):
        time.sleep(0.01)
    port = started[0].servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/"
    started[0].should_exit = True
    thread.join()


@pytest.fixture
def browser(address: str) -> Iterator[Browser]:
    """A browser that has opened the page; afterwards its console must be clean."""
    with Browser() as page:
        page.open(address)
        page.wait_for("document.getElementById('status').textContent === 'serving'")
        yield page
        assert page.errors == []


def say(browser: Browser, text: str) -> None:
    """Send a message."""
    script = f"document.getElementById('input').value = {json.dumps(text)};"
    browser.evaluate(script + "document.getElementById('composer').requestSubmit()")


def test_a_conversation(browser: Browser, master: FakeMaster) -> None:
    browser.evaluate(f"document.querySelector('[name=tools]').value = {json.dumps(json.dumps(TOOLS))}")
    browser.evaluate("document.querySelector('[name=temperature]').value = '0.5'")
    say(browser, "Hello")
    browser.wait_for(f"{ANSWER}?.querySelector('.facts') !== null")
    assert browser.evaluate(f"{ANSWER}.querySelector('.reasoning div').textContent") == "so"
    assert browser.evaluate(f"{ANSWER}.querySelector('.text').textContent") == "Hi <b>you</b>code"
    assert browser.evaluate(f"{ANSWER}.querySelector('pre').textContent") == "code"
    assert browser.evaluate(f"{ANSWER}.querySelector('.call .name').textContent") == "calls f"
    assert json.loads(browser.evaluate(f"{ANSWER}.querySelector('.call pre').textContent")) == {"a": 1}
    assert f"{len(REPLY) + 1} tokens" in browser.evaluate(f"{ANSWER}.querySelector('.facts').textContent")
    assert master.seen[-1][1].temperature == 0.5
    say(browser, "Again")
    browser.wait_for("document.querySelectorAll('.assistant .facts').length === 2")
    roles = [message["role"] for message in master.seen[-1][0].messages]
    assert roles == ["user", "assistant", "user"]


def test_the_stop_button(browser: Browser, master: FakeMaster) -> None:
    master.hold_at = 25
    say(browser, "Hello")
    browser.wait_for(f"{ANSWER}?.querySelector('.text') !== null")
    browser.evaluate("document.getElementById('stop').click()")
    browser.wait_for(f"{ANSWER}.querySelector('.error')?.textContent === 'Stopped.'")
    master.hold_at = None
    browser.wait_for("!document.getElementById('send').hidden")


def test_the_end_of_an_answer_stays_in_view(browser: Browser) -> None:
    for index in range(1, 5):
        say(browser, "a line\n" * 20)
        browser.wait_for(f"document.querySelectorAll('.assistant .facts').length === {index}")
    end = f"{ANSWER}.querySelector('.facts').getBoundingClientRect().bottom"
    assert browser.evaluate(f"{end} < document.getElementById('composer').getBoundingClientRect().top")


def test_a_narrow_page_shows_the_chat_or_the_panel(browser: Browser) -> None:
    assert not browser.evaluate("document.getElementById('panel').checkVisibility()"), "a wide page shows both"
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    shown = "['input', 'side'].map(id => document.getElementById(id).checkVisibility())"
    assert browser.evaluate(shown) == [True, False]
    browser.evaluate("document.getElementById('panel').click()")
    assert browser.evaluate(shown) == [False, True]
    browser.evaluate("document.getElementById('panel').click()")
    assert browser.evaluate(shown) == [True, False]
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate("document.getElementById('input').getBoundingClientRect().bottom <= innerHeight")


def test_the_panel_and_both_schemes(browser: Browser, master: FakeMaster) -> None:
    master.stats.num_waiting = 7
    browser.wait_for("document.getElementById('gauges').textContent.includes('Waiting7')")
    grounds = set()
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        grounds.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"
    assert len(grounds) == 2
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
