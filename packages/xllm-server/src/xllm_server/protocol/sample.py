"""Bodies of /v1/sample: the most probable tokens at marked places of a prompt. Knows nothing of tokenizers."""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.engine_request import EngineRequest, Int64
from xllm_server.protocol.usage import Usage

MAX_SAMPLE_LOGPROBS = 5


class Selector(msgspec.Struct):
    """Which places of the prompt are meant."""

    value: str
    """A text that is one token: every place of it in the prompt is a slot."""
    type: Literal["literal"] = "literal"


class SampleRequest(EngineRequest, kw_only=True):
    """Body of a sample request."""

    prompt: str
    selector: Selector
    logprobs: Int64 | None = None
    """How many tokens a slot returns, 1 to 5; 5 when left out."""

    def check(self) -> None:
        """Check what types cannot say.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_engine_fields()
        if not self.prompt:
            raise InvalidRequest("prompt must not be empty.", "prompt")
        if not self.selector.value:
            raise InvalidRequest("selector.value must not be empty.", "selector.value")
        if self.logprobs is not None and not 1 <= self.logprobs <= MAX_SAMPLE_LOGPROBS:
            raise InvalidRequest(f"logprobs must be from 1 to {MAX_SAMPLE_LOGPROBS}.", "logprobs")
        if self.stream:
            raise InvalidRequest("A sample request cannot be streamed.", "stream")

    @property
    def num_logprobs(self) -> int:
        """How many tokens a slot returns."""
        return MAX_SAMPLE_LOGPROBS if self.logprobs is None else self.logprobs


class SampleLogprobs(msgspec.Struct):
    """The most probable tokens of a slot, best first."""

    tokens: list[str] = []
    token_ids: list[int] = []
    token_logprobs: list[float] = []


class SampleChoice(msgspec.Struct):
    """One slot, numbered from the prompt's begin; `text` is its most probable token."""

    index: int
    text: str
    logprobs: SampleLogprobs
    finish_reason: Literal["selector_match", "empty_logprobs"]
    """empty_logprobs: the slot begins the prompt, where nothing precedes it."""


class SampleCompletion(msgspec.Struct, kw_only=True):
    """Body of an answer; without a match in the prompt, `choices` is empty."""

    id: str
    object: Literal["sample_completion"] = "sample_completion"
    created: int
    model: str
    choices: list[SampleChoice]
    usage: Usage
