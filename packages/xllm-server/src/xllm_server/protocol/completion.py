"""Bodies of /v1/completions. Knows nothing of tokenizers."""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_server.protocol.engine_request import Int32, Int64
from xllm_server.protocol.generation import GenerationRequest
from xllm_server.protocol.token_inputs import texts_or_tokens
from xllm_server.protocol.usage import Usage

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""
MAX_PROMPTS = 512
MAX_CHOICES = 2048
"""Prompts times n, best_of or beams of one request."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of a completion request. `max_tokens` left out means 16."""

    prompt: str | list[str | list[Int32] | Int32]
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    echo: bool | None = None
    """Begin the answer with the prompt, and its log-probabilities when `logprobs` is given."""
    logprobs: Int64 | None = None
    """Log-probability of each token, and of this many alternatives."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its begin token to texts; true when left out."""

    def check(self) -> None:
        """Check what types cannot say.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_generation()
        choices = len(self.prompts()) * max(self.n or 1, self.best_of or 1, self.num_beams)
        if choices > MAX_CHOICES:
            raise InvalidRequest(f"Prompts times n is {choices}, but at most {MAX_CHOICES} are taken.", "n")

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts one by one.

        Raises:
            InvalidRequest: none, an empty one, too many, or texts and tokens mixed.
        """
        return texts_or_tokens(self.prompt, "prompt", MAX_PROMPTS)

    def to_sampling(self) -> SamplingParams:
        """Return the sampling options.

        Raises:
            InvalidRequest: a value is out of range; `param` names the field.
        """
        return self.sampling(
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities, one entry a token; the first token of an echoed prompt has none."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []
    """Where each token begins in the text, in characters."""

    def joined(self, other: CompletionLogprobs) -> CompletionLogprobs:
        """Return these entries and then those of `other`."""
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class CompletionChoice(msgspec.Struct):
    """One answer, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, kw_only=True):
    """Body of an answer, and of each event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
