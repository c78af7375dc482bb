"""Scores marked places of a prompt: the distribution that predicts each, read while the prompt is computed.

Nothing is generated: a slot's tokens are the alternatives that the prompt's log-probabilities hold at its place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from xllm_framework.errors import InvalidRequest, XLLMError
from xllm_framework.request import RequestOutput, SamplingParams, TokenLogprob
from xllm_runtime.master import PreparedRequest
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.logprobs import token_text
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.ports import Tokenizer
from xllm_server.protocol.sample import SampleChoice, SampleCompletion, SampleLogprobs, SampleRequest
from xllm_server.sse import error_event


class SampleService(GenerationService[SampleRequest]):
    """Serves /v1/sample."""

    body_type = SampleRequest
    id_prefix = "sample-"

    def check(self, body: SampleRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        self._marker(body)
        params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=body.num_logprobs)
        master = self._state.master

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            return [master.prepare_completion(body.prompt, params, **body.options(request_id))]

        return CheckedRequest(prepare, partial(self._rendering, body))

    def _rendering(self, body: SampleRequest, answer_id: str, generation: Generation) -> SampleRendering:
        ids = generation.prepared[0].prompt_token_ids
        marker = self._marker(body)
        slots = [position for position, token_id in enumerate(ids) if token_id == marker]
        master = self._state.master
        return SampleRendering(answer_id, master.model_name, master.tokenizer, slots, body.num_logprobs)

    def _marker(self, body: SampleRequest) -> int:
        """Return the one token that the selector's text is.

        Raises:
            InvalidRequest: it is several.
        """
        ids = self._state.master.tokenizer.encode(body.selector.value, add_special_tokens=False)
        if len(ids) != 1:
            raise InvalidRequest(
                f"selector.value must be exactly one token of this model, but is {len(ids)}.", "selector.value"
            )
        return ids[0]


class SampleRendering:
    """JSON of one answer; `slots` are positions in the prompt."""

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, slots: Sequence[int], num_logprobs: int
    ) -> None:
        self._id = answer_id
        self._model = model
        self._tokenizer = tokenizer
        self._slots = slots
        self._num_logprobs = num_logprobs

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the answer."""
        entries = results[0].prompt_logprobs or []
        choices = [self._choice(index, entries[position]) for index, position in enumerate(self._slots)]
        return SampleCompletion(
            id=self._id, created=int(time.time()), model=self._model, choices=choices, usage=generation.usage
        )

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return nothing: sample requests are not streamed."""
        return b""

    def end(self, generation: Generation) -> bytes:
        """Return nothing, as `encode` does."""
        return b""

    def failure(self, error: XLLMError) -> bytes:
        """Return the event of an error."""
        return error_event(error)

    def _choice(self, index: int, entry: TokenLogprob | None) -> SampleChoice:
        if entry is None:
            return SampleChoice(index, "", SampleLogprobs(), "empty_logprobs")
        logprobs = SampleLogprobs([], [], [])
        for token_id, logprob in entry.top[: self._num_logprobs]:
            logprobs.tokens.append(token_text(self._tokenizer.token_bytes(token_id)))
            logprobs.token_ids.append(token_id)
            logprobs.token_logprobs.append(logprob)
        return SampleChoice(index, logprobs.tokens[0], logprobs, "selector_match")
