"""Servers that the public cases share: one with roomy defaults, one with hardly any blocks, one that is strict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import ServerProcess

API_KEY = "a key for tests"
STRICT_TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{%- if not loop.first and message.role == loop.previtem.role %}{{ raise_exception('Roles must alternate.') }}{% endif %}
{{- '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The script model with roomy defaults; checked for leftovers at the end."""
    with ServerProcess("--num-blocks", "4096", "--check-integrity") as process:
        yield process
        process.assert_alive()


@pytest.fixture(scope="session")
def small_server() -> Iterator[ServerProcess]:
    """The script model with 12 blocks of 16 tokens, and chunks of one block."""
    options = ("--num-blocks", "13", "--block-size", "16", "--max-prefill-chunk", "16", "--check-integrity")
    with ServerProcess(*options) as process:
        yield process
        process.assert_alive()


@pytest.fixture(scope="session")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The script model with an API key, and a template that refuses what it does not like."""
    template: Path = tmp_path_factory.mktemp("template") / "strict.jinja"
    template.write_text(STRICT_TEMPLATE)
    with ServerProcess("--chat-template", str(template), api_key=API_KEY) as process:
        yield process
        process.assert_alive()
