"""Completions: prompts in, texts out; with echo, the prompt before each. Knows nothing of chat templates.

Choice `p * n + i` is sequence i of prompt p.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from xllm_framework.errors import XLLMError
from xllm_framework.request import RequestOutput, SequenceOutput, TokenLogprob
from xllm_runtime.master import PreparedRequest
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.logprobs import LogprobsRenderer
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.ports import Tokenizer
from xllm_server.protocol.completion import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from xllm_server.protocol.usage import Usage
from xllm_server.sse import DONE, error_event, event


class CompletionService(GenerationService[CompletionRequest]):
    """Serves /v1/completions."""

    body_type = CompletionRequest
    id_prefix = "cmpl-"

    def check(self, body: CompletionRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        params = body.to_sampling()
        prompts = body.prompts()

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            options = body.options(request_id)
            return [
                self._state.master.prepare_completion(
                    prompt, params, add_special_tokens=body.add_special_tokens is not False, **options
                )
                for prompt in prompts
            ]

        return CheckedRequest(prepare, partial(self._rendering, body))

    def _rendering(self, body: CompletionRequest, answer_id: str, generation: Generation) -> CompletionRendering:
        master = self._state.master
        return CompletionRendering(body, answer_id, master.model_name, master.tokenizer, generation.prepared)


class CompletionRendering:
    """JSON of one completion answer."""

    def __init__(
        self,
        body: CompletionRequest,
        answer_id: str,
        model: str,
        tokenizer: Tokenizer,
        prepared: Sequence[PreparedRequest],
    ) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._tokenizer = tokenizer
        self._prepared = prepared
        self._num_choices = body.n or 1
        self._skips_special = body.skip_special_tokens is not False
        self._logprobs: dict[int, LogprobsRenderer] = {}
        self._prompt_logprobs: dict[int, list[TokenLogprob | None]] = {}

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return the chunks of new text; the finish reason rides on the last one of each choice."""
        events = []
        for prompt_index, output in outputs:
            self._note_prompt(prompt_index, output)
            for sequence in output.outputs:
                choice = self._choice(prompt_index, sequence)
                if choice.text or choice.finish_reason is not None or (choice.logprobs and choice.logprobs.tokens):
                    events.append(event(self._chunk([choice])))
        return b"".join(events)

    def end(self, generation: Generation) -> bytes:
        """Return the usage chunk, when asked for, and the end mark."""
        if not self._body.includes_usage:
            return DONE
        chunk = self._chunk([])
        chunk.usage = generation.usage
        return event(chunk) + DONE

    def failure(self, error: XLLMError) -> bytes:
        """Return the event that ends a stream which failed."""
        return error_event(error)

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the whole answer."""
        choices = []
        for prompt_index, output in enumerate(results):
            self._note_prompt(prompt_index, output)
            choices += [self._choice(prompt_index, sequence) for sequence in output.outputs]
        return self._answer(choices, generation.usage)

    def _note_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs

    def _choice(self, prompt_index: int, sequence: SequenceOutput) -> CompletionChoice:
        index = prompt_index * self._num_choices + sequence.index
        text, logprobs = "", None
        renderer = self._logprobs.get(index)
        if renderer is None:
            renderer = LogprobsRenderer(self._tokenizer, skips_special=self._skips_special)
            self._logprobs[index] = renderer
            if self._body.echo:
                text, logprobs = self._echo(prompt_index, renderer)
        if self._body.logprobs is not None:
            new = renderer.completion(sequence)
            logprobs = new if logprobs is None else logprobs.joined(new)
        return CompletionChoice(
            index=index,
            text=text + sequence.text,
            logprobs=logprobs,
            finish_reason=None if sequence.finish_reason is None else sequence.finish_reason.value,
        )

    def _echo(self, prompt_index: int, renderer: LogprobsRenderer) -> tuple[str, CompletionLogprobs | None]:
        """Return the prompt's text, and its log-probabilities when asked for."""
        prepared = self._prepared[prompt_index]
        ids = prepared.prompt_token_ids
        text = prepared.prompt
        if text is None:
            text = self._tokenizer.decode(ids, skip_special_tokens=self._skips_special)
        entries = self._prompt_logprobs.get(prompt_index)
        return text, None if entries is None else renderer.prompt(ids, entries)

    def _chunk(self, choices: list[CompletionChoice]) -> Completion:
        return self._answer(choices, None if self._body.includes_usage else msgspec.UNSET)

    def _answer(self, choices: list[CompletionChoice], usage: Usage | msgspec.UnsetType | None) -> Completion:
        return Completion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)
