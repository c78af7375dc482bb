"""Chat: from messages to an assistant's turn. Knows nothing of tokens beyond their log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from xllm_framework.request import RequestOutput, SequenceOutput
from xllm_runtime.master import ChatInput, PreparedRequest
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.logprobs import LogprobsRenderer
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.api_service.service import GenerationService
from xllm_server.ports import Tokenizer
from xllm_server.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChunkChoice,
    Delta,
)
from xllm_server.sse import event


class ChatService(GenerationService[ChatCompletionRequest]):
    """Serves /v1/chat/completions."""

    body_type = ChatCompletionRequest
    id_prefix = "chatcmpl-"

    def check(self, body: ChatCompletionRequest) -> Callable[[str], Sequence[PreparedRequest]]:
        """Check `body` and return the call that applies the template and tokenises."""
        body.check()
        params = body.to_sampling()
        is_continued = bool(body.continue_final_message)
        opens_turn = not is_continued if body.add_generation_prompt is None else body.add_generation_prompt

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            chat = ChatInput(
                messages=body.template_messages(),
                tools=None,
                add_generation_prompt=opens_turn,
                continue_final_message=is_continued,
                template_kwargs=body.template_kwargs(),
            )
            return [
                self._state.master.prepare_chat(
                    chat,
                    params,
                    request_id=request_id,
                    priority=body.priority or 0,
                    deadline_s=body.deadline_s(),
                    cache_salt=body.cache_salt or "",
                    is_offline=bool(body.offline),
                )
            ]

        return prepare

    def rendering(self, body: ChatCompletionRequest, answer_id: str, generation: Generation) -> ChatRendering:
        """Return what renders the answer to `body`."""
        return ChatRendering(body, answer_id, self._state.master.model_name, self._state.master.tokenizer)


class ChatRendering:
    """JSON of one chat answer."""

    def __init__(self, body: ChatCompletionRequest, answer_id: str, model: str, tokenizer: Tokenizer) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._tokenizer = tokenizer
        self._created = int(time.time())
        self._logprobs: dict[int, LogprobsRenderer] = {}
        self._opened: set[int] = set()

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return the chunks of new text: the role first, then content, then the finish reason on its own."""
        choices: list[ChunkChoice] = []
        for _, output in outputs:
            for sequence in output.outputs:
                self._add_chunks(choices, sequence)
        return b"".join([event(self._chunk([choice])) for choice in choices])

    def end(self, generation: Generation) -> bytes:
        """Return the usage chunk, when asked for."""
        if not self._body.includes_usage:
            return b""
        chunk = self._chunk([])
        chunk.usage = generation.usage
        return event(chunk)

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the whole answer."""
        choices = [
            ChatChoice(
                index=sequence.index,
                message=AnswerMessage(sequence.text),
                finish_reason=sequence.finish_reason.value if sequence.finish_reason else "stop",
                logprobs=self._render_logprobs(sequence),
            )
            for sequence in results[0].outputs
        ]
        return ChatCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=generation.usage
        )

    def _add_chunks(self, choices: list[ChunkChoice], sequence: SequenceOutput) -> None:
        index = sequence.index
        if index not in self._opened:
            self._opened.add(index)
            choices.append(ChunkChoice(index, Delta(role="assistant", content="")))
        logprobs = self._render_logprobs(sequence)
        if sequence.text or (logprobs is not None and logprobs.content):
            choices.append(ChunkChoice(index, Delta(content=sequence.text), logprobs))
        if sequence.finish_reason is not None:
            choices.append(ChunkChoice(index, Delta(), None, sequence.finish_reason.value))

    def _chunk(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        chunk = ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=choices)
        if self._body.includes_usage:
            chunk.usage = None
        return chunk

    def _render_logprobs(self, sequence: SequenceOutput) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        renderer = self._logprobs.get(sequence.index)
        if renderer is None:
            renderer = LogprobsRenderer(self._tokenizer, skips_special=self._body.skip_special_tokens is not False)
            self._logprobs[sequence.index] = renderer
        return renderer.chat(sequence)
