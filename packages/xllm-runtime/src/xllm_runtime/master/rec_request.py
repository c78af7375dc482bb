"""From a prompt or a conversation to a search that the engine side can trust. Thread-safe; keeps no request."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

from xllm_framework.chat_template import ChatTemplate
from xllm_framework.errors import InvalidRequest, RequestTooLong
from xllm_framework.request.rec_messages import AddSearch, InputTensor, SearchParams
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.prepared_request import RequestOptions
from xllm_runtime.master.rec_tensors import prompt_of_tensors
from xllm_runtime.master.request_factory import mixed


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """A search that passed every check of the front side; can be submitted once."""

    message: AddSearch
    prompt: str | None
    """The prompt as text (after the chat template), None when token ids were given."""
    client_request_id: str | None = None
    """The id that the caller gave; it may repeat."""

    @property
    def request_id(self) -> str:
        """The master's own id of the search, unique."""
        return self.message.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as token ids."""
        return self.message.prompt_token_ids


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What a search must keep to."""

    max_model_len: int
    """Tokens of prompt and path together."""
    vocab_size: int
    max_rounds: int
    """Tokens of an item; a search may take fewer rounds."""
    hidden_size: int = 0
    """Of embeddings in tensors."""
    is_encoder_decoder: bool = False
    takes_embeddings: bool = True
    """Whether the implementation can read embeddings in place of tokens."""


class SearchFactory:
    """Applies the template, tokenises, checks, and gives each search an id and a seed.

    Args:
        tokenizer: None for a model that takes token ids alone.
        seed: from which seeds of requests without one are drawn; 0 takes a random one.
        clock: monotonic seconds, the engine side's clock too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        limits: SearchLimits,
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._limits = limits
        self._seed = seed or int.from_bytes(os.urandom(8), "little")
        self._clock = clock
        self._numbers = itertools.count()

    def from_prompt(
        self,
        prompt: str | list[int] | None,
        params: SearchParams,
        *,
        add_special_tokens: bool = True,
        seed: int | None = None,
        tensors: tuple[InputTensor, ...] = (),
        **options: Unpack[RequestOptions],
    ) -> PreparedSearch:
        """Return the search for a text, token ids or tensors.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served; `param` names the field.
        """
        text = prompt if isinstance(prompt, str) else None
        token_ids = (
            prompt
            if not isinstance(prompt, str)
            else self._encode(prompt, "prompt", add_special_tokens=add_special_tokens)
        )
        if tensors:
            token_ids, options = self._read_tensors(token_ids, tensors, options)
        return self._prepare(text, token_ids or [], params, "prompt", seed, tensors, options)

    def _read_tensors(
        self, token_ids: list[int] | None, tensors: tuple[InputTensor, ...], options: RequestOptions
    ) -> tuple[list[int], RequestOptions]:
        """Return the prompt that the tensors stand for, and options that tell it from others with the same tokens."""
        limits = self._limits
        if not limits.takes_embeddings:
            raise InvalidRequest("This server reads no embeddings: start it with model_impl python.", "tensors")
        prompt = prompt_of_tensors(token_ids, tensors, limits.hidden_size, is_encoder_decoder=limits.is_encoder_decoder)
        salted = RequestOptions(**options)
        salted["cache_salt"] = f"{options.get('cache_salt', '')}\0{prompt.salt}"
        return prompt.token_ids, salted

    def from_chat(
        self, chat: ChatInput, params: SearchParams, *, seed: int | None = None, **options: Unpack[RequestOptions]
    ) -> PreparedSearch:
        """Return the search for a conversation; raises as `from_prompt` does."""
        if self._chat_template is None:
            raise InvalidRequest("This model has no chat template: send a prompt.", "messages")
        if not chat.messages:
            raise InvalidRequest("messages must hold at least one message.", "messages")
        prompt = self._chat_template.render(
            chat.messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            kwargs=chat.template_kwargs,
        )
        token_ids = self._encode(prompt, "messages", add_special_tokens=False)
        return self._prepare(prompt, token_ids, params, "messages", seed, (), options)

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        if self._tokenizer is None:
            raise InvalidRequest("This model has no tokenizer: send token ids.", param)
        limit = self._limits.max_model_len
        if len(text) > limit and len(text) > self._tokenizer.max_text_length(limit):
            raise RequestTooLong(
                f"{param} has {len(text)} characters, more than the {limit} tokens of max_model_len can hold.", param
            )
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _prepare(
        self,
        prompt: str | None,
        token_ids: list[int],
        params: SearchParams,
        param: str,
        seed: int | None,
        tensors: tuple[InputTensor, ...],
        options: RequestOptions,
    ) -> PreparedSearch:
        self._check(token_ids, params, param)
        number = next(self._numbers)
        request_id = options.get("request_id")
        message = AddSearch(
            f"request-{number}" if request_id is None else f"{request_id}-{number}",
            token_ids,
            params,
            self._clock(),
            seed=mixed(self._seed + number) if seed is None else seed & (2**64 - 1),
            priority=options.get("priority", 0),
            deadline_s=options.get("deadline_s"),
            cache_salt=options.get("cache_salt", ""),
            tensors=tensors,
        )
        return PreparedSearch(message, prompt, request_id)

    def _check(self, token_ids: list[int], params: SearchParams, param: str) -> None:
        limits = self._limits
        if not token_ids:
            raise InvalidRequest(f"{param} must hold at least one token.", param)
        lowest, highest = min(token_ids), max(token_ids)
        if lowest < 0 or highest >= limits.vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidRequest(
                f"{param} holds token id {wrong}, but ids go from 0 to {limits.vocab_size - 1}.", param
            )
        if params.num_rounds > limits.max_rounds:
            raise InvalidRequest(
                f"An item has {limits.max_rounds} tokens (max_decode_rounds), but {params.num_rounds} are asked for.",
                "max_tokens",
            )
        if len(token_ids) + params.num_rounds > limits.max_model_len:
            raise RequestTooLong(
                f"{param} of {len(token_ids)} tokens and {params.num_rounds} of an item exceed max_model_len "
                f"{limits.max_model_len} together.",
                param,
            )
