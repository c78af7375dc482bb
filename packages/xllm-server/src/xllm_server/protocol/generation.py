"""The fields that generating requests share, and what they mean in sampling. Knows nothing of prompts.

Names, types and defaults are OpenAI's where it has the field; the rest are xLLM's, with the names that other servers use.
Null always means the same as leaving the field out.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import NO_OBJECTIVES, SamplingParams, ServiceObjectives
from xllm_runtime.master.prepared_request import RequestOptions
from xllm_server.protocol.structured_output import StructuredOutputFields

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Integers that travel to the engine and into its arrays."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
MAX_REQUEST_ID_LENGTH = 256
MAX_CACHE_SALT_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """Send one more chunk with the token counts, without choices, before the end."""


class EngineRequest(msgspec.Struct, kw_only=True):
    """Fields of every request that the engine serves, whoever's API it follows: who asks, and how soon it must be served."""

    model: str | None = None
    """Must be the served model's name; left out, that is taken."""
    stream: bool | None = None
    request_id: str | None = None
    """Names the request in answers and logs; need not be unique. The header X-Request-Id goes before it."""
    priority: Int32 | None = None
    cache_salt: str | None = None
    """Only requests with an equal salt share cached prompts."""
    offline: bool | None = None
    """Best effort: may wait behind and be preempted by others."""
    timeout: float | None = None
    """Seconds that the request may wait for its first step; then it is given up with 503. The header X-Request-Timeout
    can only shorten it."""
    ttft_slo_ms: float | None = None
    """Time to first token to aim at, where the server's strategy looks at it; so are the fields below."""
    tpot_slo_ms: float | None = None
    ttlt_slo_ms: float | None = None
    ttft_weight: float | None = None
    tpot_weight: float | None = None
    ttlt_weight: float | None = None

    def check_engine_fields(self) -> None:
        """Check the fields of this type.

        Raises:
            InvalidRequest: `param` names the field.
        """
        if self.request_id is not None:
            check_request_id(self.request_id, "request_id")
        if self.cache_salt is not None and len(self.cache_salt) > MAX_CACHE_SALT_LENGTH:
            raise InvalidRequest(f"cache_salt has at most {MAX_CACHE_SALT_LENGTH} characters.", "cache_salt")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidRequest(f"timeout must be above 0 seconds, not {self.timeout:g}.", "timeout")
        self._objectives()

    def options(self, request_id: str) -> RequestOptions:
        """Return what the master is told beside prompt and sampling; the time that may be waited begins now."""
        return RequestOptions(
            request_id=request_id,
            priority=self.priority or 0,
            deadline_s=None if self.timeout is None else time.monotonic() + self.timeout,
            cache_salt=self.cache_salt or "",
            is_offline=bool(self.offline),
            objectives=self._objectives(),
        )

    def _objectives(self) -> ServiceObjectives:
        given = {name: value for name in _OBJECTIVE_FIELDS if (value := getattr(self, name)) is not None}
        return ServiceObjectives(**given) if given else NO_OBJECTIVES


_OBJECTIVE_FIELDS = ServiceObjectives.__struct_fields__


class GenerationRequest(StructuredOutputFields, EngineRequest, kw_only=True):
    """Fields of chat and completion requests; see the module."""

    stream_options: StreamOptions | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    temperature: float | None = None
    """1.0 when left out; 0 is greedy."""
    top_p: float | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    n: Int64 | None = None
    best_of: Int64 | None = None
    """Only accepted when equal to n."""
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int32] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a streamed answer ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_generation(self) -> None:
        """Check what types cannot say and `SamplingParams` does not know.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_engine_fields()
        if self.best_of is not None and self.best_of != (self.n if self.n is not None else 1):
            raise InvalidRequest("best_of is only supported when it equals n.", "best_of")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed with stream: true.", "stream_options")
        if self.stop_token_ids is not None and len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} tokens.", "stop_token_ids")

    def sampling(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """Return the sampling options; the arguments are those which chats and completions spell differently.

        Raises:
            InvalidRequest: a value is out of range; `param` names the field.
        """
        given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            constraint=self.constraint(),
            **given,
        )


_SAMPLING_FIELDS = (
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)
"""Fields that mean the same in `SamplingParams`, under the same name."""


def check_request_id(request_id: str, param: str) -> None:
    """Check a request id from outside: 1 to 256 printable ASCII characters.

    Raises:
        InvalidRequest: it is longer, empty, or holds something else; `param` is the argument.
    """
    is_printable = request_id.isascii() and request_id.isprintable()
    if not (0 < len(request_id) <= MAX_REQUEST_ID_LENGTH and is_printable):
        raise InvalidRequest(f"{param} must have 1 to {MAX_REQUEST_ID_LENGTH} printable ASCII characters.", param)
