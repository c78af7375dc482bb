"""From a conversation with images and videos to a request. Thread-safe; keeps no request.

The media are brought into the model's shape, the chat template writes a mark for each, and the marks become as many
place-holders as the media have embeddings. Knows nothing of files, URLs or pixels.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Unpack

import msgspec

from xllm_framework.chat_template import ChatTemplate
from xllm_framework.errors import InvalidRequest
from xllm_framework.multimodal import PromptMedia, expand_placeholders
from xllm_framework.request import SamplingParams
from xllm_framework.request.pooling_params import PoolingParams
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import NO_OUTPUT, RequestFactory
from xllm_runtime.processors.media_loader import MediaLoader
from xllm_runtime.processors.media_parts import take_media_parts
from xllm_runtime.processors.media_processor import MediaProcessor, ProcessedMedia


class VLMRequestFactory(RequestFactory):
    """A `RequestFactory` for prompts with media."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        processor: MediaProcessor,
        loader: MediaLoader,
        *,
        max_model_len: int,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        super().__init__(tokenizer, chat_template, max_model_len=max_model_len, vocab_size=vocab_size, seed=seed)
        self._processor = processor
        self._loader = loader

    def from_chat(
        self, chat: ChatInput, sampling: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Return the request for a conversation; fetches and decodes its media first. Raises as `from_prompt` does."""
        messages, sources = take_media_parts(chat.messages)
        chat = ChatInput(
            messages=messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            template_kwargs=chat.template_kwargs,
        )
        if not sources:
            return super().from_chat(chat, sampling, **options)
        return self._with_media(chat, self._loader.load(sources), sampling, options)

    def from_media(
        self,
        prompt: str | list[int],
        parts: Sequence[dict[str, Any]],
        sampling: SamplingParams,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Return the request for a prompt that holds the model's own marks, one a content part of `parts`."""
        _, sources = take_media_parts([{"role": "user", "content": list(parts)}])
        media = self._loader.load(sources)
        token_ids = self._tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        text = prompt if isinstance(prompt, str) else None
        return self._place(text, token_ids, media, sampling, "prompt", True, options)

    def from_media_alone(
        self, messages: Sequence[dict[str, Any]], **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Return the request for the embeddings of the media of `messages`, whose texts mean nothing.

        Its prompt is never computed, so that nobody else may find its blocks: it has a cache salt of its own.
        """
        _, sources = take_media_parts(messages)
        if not sources:
            raise InvalidRequest("messages hold no image and no video to embed.", "messages")
        marks = {kind: token_id for token_id, kind in self._processor.marks.items()}
        known = [source for source in sources if source.kind in marks]
        if len(known) < len(sources):
            raise InvalidRequest("messages hold a medium of a kind that this model does not take.", "messages")
        media = self._loader.load(sources)
        options["cache_salt"] = os.urandom(16).hex()
        prompt = [marks[source.kind] for source in sources]
        prepared = self._place(None, prompt, media, NO_OUTPUT, "messages", True, options)
        message = msgspec.structs.replace(prepared.message, pooling=PoolingParams("media"))
        return dataclasses.replace(prepared, message=message)

    def _with_media(
        self, chat: ChatInput, media: list[ProcessedMedia], sampling: SamplingParams, options: RequestOptions
    ) -> PreparedRequest:
        if self._chat_template is None:
            raise InvalidRequest("This model has no chat template: start with chat_template.", "messages")
        prompt = self._chat_template.render(
            chat.messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            kwargs=chat.template_kwargs,
            media_kinds=self._processor.targets.keys(),
        )
        if sampling.constraint is not None:
            sampling = msgspec.structs.replace(sampling, constraint=sampling.constraint.after(prompt))
        token_ids = self._encode(prompt, "messages", add_special_tokens=False, limit=self._max_model_len)
        return self._place(prompt, token_ids, media, sampling, "messages", chat.continue_final_message, options)

    def _place(
        self,
        text: str | None,
        token_ids: Sequence[int],
        media: list[ProcessedMedia],
        sampling: SamplingParams,
        param: str,
        is_continuation: bool,
        options: RequestOptions,
    ) -> PreparedRequest:
        processor = self._processor
        pairs = [(medium.item, medium.expansion) for medium in media]
        prompt, items = expand_placeholders(token_ids, pairs, processor.marks, processor.targets)
        prepared = self._prepare(text, prompt, sampling, param, is_continuation, options)
        steps = {medium.item.content_hash: medium.time_step for medium in media}
        placed: PromptMedia = processor.place(len(prompt), items, [steps[item.content_hash] for item in items])
        message = msgspec.structs.replace(prepared.message, media=placed)
        return PreparedRequest(message, text, prepared.client_request_id, is_continuation)
