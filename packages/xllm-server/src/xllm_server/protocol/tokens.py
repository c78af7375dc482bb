"""Bodies of /tokenize and /detokenize. Knows nothing of tokenizers."""

from __future__ import annotations

from typing import Any

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.engine_request import EngineRequest, Int32


class TokenizeRequest(EngineRequest, kw_only=True):
    """Body of /tokenize: either `prompt`, or `messages` with what a chat request has beside them."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its begin token to `prompt`; true when left out."""
    return_token_strs: bool | None = None
    """Also return each token's text."""
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Check that there is one of prompt and messages.

        Raises:
            InvalidRequest: there are none or both.
        """
        self.check_engine_fields()
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("Send either prompt or messages.", "prompt")

    def chat_content(self) -> dict[str, Any]:
        """Return the body of the chat request with these messages."""
        names = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
        return {name: getattr(self, name) for name in names}


class TokenizeAnswer(msgspec.Struct):
    """Body of an answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(EngineRequest, kw_only=True):
    """Body of /detokenize."""

    tokens: list[Int32]
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; false when left out."""


class DetokenizeAnswer(msgspec.Struct):
    """Body of an answer of /detokenize."""

    prompt: str
