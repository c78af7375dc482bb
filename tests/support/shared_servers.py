"""Servers that many tests share: each is started at its first use and stopped at the end of the test session."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

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


@cache
def roomy_server() -> ServerProcess:
    """The script model with roomy defaults."""
    return _until_exit(ServerProcess("--num-blocks", "4096", "--check-integrity"))


@cache
def small_server() -> ServerProcess:
    """The script model with 12 blocks of 16 tokens, and chunks of one block."""
    options = ("--num-blocks", "13", "--block-size", "16", "--max-prefill-chunk", "16", "--check-integrity")
    return _until_exit(ServerProcess(*options))


@cache
def strict_server() -> ServerProcess:
    """The script model with an API key, and a template that refuses what it does not like."""
    template = Path(tempfile.mkdtemp(prefix="xllm-template-")) / "strict.jinja"
    template.write_text(STRICT_TEMPLATE)
    return _until_exit(ServerProcess("--chat-template", str(template), api_key=API_KEY))


@cache
def tool_server(tool_call_parser: str) -> ServerProcess:
    """The script model with a parser for tool calls and one for <think> tags."""
    return _until_exit(ServerProcess("--tool-call-parser", tool_call_parser, "--reasoning-parser", "think"))


def _until_exit(process: ServerProcess) -> ServerProcess:
    atexit.register(process.__exit__)
    return process
