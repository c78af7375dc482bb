"""The fields that generating requests share, and what they mean in sampling. Knows nothing of prompts.

Names, types and defaults are OpenAI's where it has the field; the rest are xLLM's, with the names that other servers use.
Null always means the same as leaving the field out.
"""

from __future__ import annotations

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_server.protocol.engine_request import Int32, Int64
from xllm_server.protocol.structured_output import StructuredOutputFields

MAX_STOP_TOKEN_IDS = 1024


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """Send one more chunk with the token counts, without choices, before the end."""


class GenerationRequest(StructuredOutputFields, kw_only=True):
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
    """Generate so many choices and answer the n best of them; they all come at the end, also in a stream."""
    beam_width: Int32 | None = None
    """Above 1, search for the most probable answers; the n best come at the end, best first."""
    use_beam_search: bool | None = None
    """The same with as many beams as choices, where `beam_width` is left out."""
    length_penalty: float | None = None
    """In a beam search, rank answers by log-probability / tokens ** length_penalty; 0 when left out."""
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

    @property
    def num_beams(self) -> int:
        """The width of the beam search; 1 for none."""
        if self.beam_width is not None:
            return self.beam_width
        return (self.n or 1) if self.use_beam_search else 1

    def check_generation(self) -> None:
        """Check what types cannot say and `SamplingParams` does not know.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_engine_fields()
        if self.length_penalty is not None and self.num_beams == 1:
            raise InvalidRequest("length_penalty belongs to a beam search: send beam_width.", "length_penalty")
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
        if self.best_of is not None and self.best_of != (self.n or 1):
            given["best_of"] = self.best_of
        if self.num_beams != 1:
            given["beam_width"] = self.num_beams
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
    "length_penalty",
    "logit_bias",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)
"""Fields that mean the same in `SamplingParams`, under the same name."""
