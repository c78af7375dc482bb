"""From a conversation with images to a request, by a model's own processor in transformers. Thread-safe; keeps no request.

Knows nothing of how the processor works, or of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import msgspec

from xllm_framework.chat_template import ChatTemplate
from xllm_framework.errors import InvalidRequest
from xllm_framework.multimodal import PromptMedia
from xllm_framework.request import SamplingParams
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import RequestFactory
from xllm_runtime.processors.media_parts import take_media_parts
from xllm_runtime.processors.transformers_inputs import TransformersInputs, read_inputs


class TransformersRequestFactory(RequestFactory):
    """A `RequestFactory` for prompts with images."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        inputs: TransformersInputs,
        *,
        max_model_len: int,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        super().__init__(tokenizer, chat_template, max_model_len=max_model_len, vocab_size=vocab_size, seed=seed)
        self._inputs = inputs
        knows_strings = chat_template is not None and "is string" in chat_template.source
        self._kinds = ("image",) if knows_strings else ("image", "text")

    def from_chat(
        self, chat: ChatInput, sampling: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Return the request for a conversation; raises as `RequestFactory.from_chat` does."""
        messages, sources = take_media_parts(chat.messages)
        if self._chat_template is None:
            raise InvalidRequest("This model has no chat template: start with chat_template.", "messages")
        prompt = self._chat_template.render(
            messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            kwargs=chat.template_kwargs,
            media_kinds=self._kinds,
        )
        if sampling.constraint is not None:
            sampling = msgspec.structs.replace(sampling, constraint=sampling.constraint.after(prompt))
        if not sources:
            token_ids = self._encode(prompt, "messages", add_special_tokens=False, limit=self._max_model_len)
            return self._prepare(prompt, token_ids, sampling, "messages", chat.continue_final_message, options)
        media = self._inputs.process(prompt, sources, has_special_tokens=True)
        return self._with(prompt, media, sampling, "messages", chat.continue_final_message, options)

    def from_media(
        self,
        prompt: str | list[int],
        parts: Sequence[dict[str, Any]],
        sampling: SamplingParams,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Return the request for a text that holds the model's own marks, one a content part of `parts`."""
        if not isinstance(prompt, str):
            raise InvalidRequest("This model takes images beside a text, not beside token ids.", "prompt")
        _, sources = take_media_parts([{"role": "user", "content": list(parts)}])
        media = self._inputs.process(prompt, sources, has_special_tokens=False)
        return self._with(prompt, media, sampling, "prompt", True, options)

    def from_media_alone(
        self, messages: Sequence[dict[str, Any]], **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Refuse: what a tower makes of an image is the library's own affair."""
        raise InvalidRequest("Models that transformers serves give no embeddings of images.", "messages")

    def _with(
        self,
        text: str,
        media: PromptMedia,
        sampling: SamplingParams,
        param: str,
        is_continuation: bool,
        options: RequestOptions,
    ) -> PreparedRequest:
        token_ids = read_inputs(media.items[0]).token_ids
        prepared = self._prepare(text, token_ids, sampling, param, is_continuation, options)
        message = msgspec.structs.replace(prepared.message, media=media)
        return PreparedRequest(message, text, prepared.client_request_id, is_continuation)
