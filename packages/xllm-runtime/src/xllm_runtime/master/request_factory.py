"""From a prompt or a conversation to a request that the engine side can trust. Thread-safe; keeps no request.

Knows nothing of who runs when, or of outputs.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from typing import Unpack

import msgspec

from xllm_framework.chat_template import ChatTemplate
from xllm_framework.errors import InvalidRequest, RequestTooLong
from xllm_framework.request import NO_OBJECTIVES, SamplingParams
from xllm_framework.request.messages import AddRequest
from xllm_framework.request.pooling_params import PoolingParams
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.constraint import ConstraintChecker
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions

_MASK = (1 << 64) - 1
NO_OUTPUT = SamplingParams(max_tokens=0, temperature=0.0)


class RequestFactory:
    """Applies the template, tokenises, checks, and gives each request an id and a seed.

    Args:
        chat_template: None for a model that has none.
        max_model_len: tokens of prompt and output together that one sequence can hold.
        vocab_size: tokens that the model has logits for.
        seed: from which seeds of requests without one are drawn; 0 takes a random one.
        clock: monotonic seconds, the engine side's clock too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        *,
        max_model_len: int,
        vocab_size: int,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._seed = seed or int.from_bytes(os.urandom(8), "little")
        self._clock = clock
        self._numbers = itertools.count()
        self._constraints = ConstraintChecker()

    def from_prompt(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        add_special_tokens: bool = True,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Return the request for a text or for token ids; `options` as in `LLMMaster.prepare_completion`.

        Raises:
            InvalidRequest, RequestTooLong: the request cannot be served; `param` names the field.
        """
        if isinstance(prompt, str):
            token_ids = self._encode(prompt, "prompt", add_special_tokens=add_special_tokens, limit=self._max_model_len)
            return self._prepare(prompt, token_ids, sampling, "prompt", True, options)
        return self._prepare(None, prompt, sampling, "prompt", True, options)

    def from_chat(
        self, chat: ChatInput, sampling: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Return the request for a conversation; raises as `from_prompt` does."""
        if self._chat_template is None:
            raise InvalidRequest(
                "This model has no chat template: send a prompt, or start with chat_template.", "messages"
            )
        if not chat.messages:
            raise InvalidRequest("messages must hold at least one message.", "messages")
        prompt = self._chat_template.render(
            chat.messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            kwargs=chat.template_kwargs,
        )
        if sampling.constraint is not None:
            sampling = msgspec.structs.replace(sampling, constraint=sampling.constraint.after(prompt))
        token_ids = self._encode(prompt, "messages", add_special_tokens=False, limit=self._max_model_len)
        return self._prepare(prompt, token_ids, sampling, "messages", chat.continue_final_message, options)

    def from_pooling(
        self,
        prompt: str | list[int],
        pooling: PoolingParams,
        *,
        param: str,
        truncate_to: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Return the request for a vector of a text or of token ids, cut to `truncate_to` tokens; raises as `from_prompt`.

        `param` is what the caller calls the prompt.
        """
        if isinstance(prompt, str):
            limit = self._max_model_len if truncate_to is None else None
            if truncate_to is not None:
                prompt = prompt[: self._tokenizer.max_text_length(truncate_to + 1)]
            token_ids = self._encode(prompt, param, add_special_tokens=True, limit=limit)
            if truncate_to is not None and len(token_ids) > truncate_to:
                token_ids = self._truncated(prompt, token_ids, truncate_to)
        else:
            token_ids = prompt[:truncate_to]
        self._check_tokens(token_ids, param)
        if len(token_ids) > self._max_model_len:
            raise RequestTooLong(
                f"{param} has {len(token_ids)} tokens, more than max_model_len {self._max_model_len}.", param
            )
        message = msgspec.structs.replace(self._message(token_ids, NO_OUTPUT, options), pooling=pooling)
        text = prompt if isinstance(prompt, str) else None
        return PreparedRequest(message, text, options.get("request_id"))

    def from_pooled_chat(
        self, chat: ChatInput, pooling: PoolingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Return the request for a vector of a conversation; raises as `from_chat` does."""
        prepared = self.from_chat(chat, NO_OUTPUT, **options)
        return dataclasses.replace(prepared, message=msgspec.structs.replace(prepared.message, pooling=pooling))

    def _truncated(self, text: str, token_ids: list[int], limit: int) -> list[int]:
        """Return the first `limit` tokens, but all that the tokenizer adds before and behind the text."""
        plain = self._tokenizer.encode(text, add_special_tokens=False)
        num_added = len(token_ids) - len(plain)
        before = next((at for at in range(num_added + 1) if token_ids[at : at + len(plain)] == plain), num_added)
        kept = max(0, limit - num_added)
        return (token_ids[: before + kept] + token_ids[before + len(plain) :])[:limit]

    def _encode(self, text: str, param: str, *, add_special_tokens: bool, limit: int | None) -> list[int]:
        """Return the token ids of `text`; one that cannot fit `limit`, however it is cut into tokens, is not cut at all."""
        if limit is not None and len(text) > limit and len(text) > self._tokenizer.max_text_length(limit):
            raise RequestTooLong(
                f"{param} has {len(text)} characters, more than the {limit} tokens of max_model_len can hold.", param
            )
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _prepare(
        self,
        prompt: str | None,
        token_ids: list[int],
        sampling: SamplingParams,
        param: str,
        is_continuation: bool,
        options: RequestOptions,
    ) -> PreparedRequest:
        self._check(token_ids, sampling, param)
        message = self._message(token_ids, sampling, options)
        return PreparedRequest(message, prompt, options.get("request_id"), is_continuation)

    def _message(self, token_ids: list[int], sampling: SamplingParams, options: RequestOptions) -> AddRequest:
        number = next(self._numbers)
        request_id = options.get("request_id")
        return AddRequest(
            request_id=f"request-{number}" if request_id is None else f"{request_id}-{number}",
            prompt_token_ids=token_ids,
            sampling=sampling,
            arrival_time_s=self._clock(),
            seed=mixed(self._seed + number),
            priority=options.get("priority", 0),
            deadline_s=options.get("deadline_s"),
            cache_salt=options.get("cache_salt", ""),
            is_offline=options.get("is_offline", False),
            objectives=options.get("objectives", NO_OBJECTIVES),
        )

    def _check_tokens(self, token_ids: list[int], param: str) -> None:
        if not token_ids:
            raise InvalidRequest(f"{param} must hold at least one token.", param)
        lowest, highest = min(token_ids), max(token_ids)
        if lowest < 0 or highest >= self._vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidRequest(f"{param} holds token id {wrong}, but ids go from 0 to {self._vocab_size - 1}.", param)

    def _check(self, token_ids: list[int], sampling: SamplingParams, param: str) -> None:
        self._check_tokens(token_ids, param)
        sampling.check_vocabulary(self._vocab_size)
        if sampling.constraint is not None:
            self._constraints.check(sampling.constraint)
        num_tokens, limit = len(token_ids), self._max_model_len
        if num_tokens > limit - 1:
            raise RequestTooLong(
                f"{param} has {num_tokens} tokens, but at most {limit - 1} leave room for an output (max_model_len {limit}).",
                param,
            )
        if sampling.max_tokens is not None and num_tokens + sampling.max_tokens > limit:
            raise RequestTooLong(
                f"{param} of {num_tokens} tokens and max_tokens {sampling.max_tokens} exceed max_model_len {limit} together.",
                "max_tokens",
            )


def mixed(number: int) -> int:
    """Return a 64-bit hash of `number` (the finaliser of SplitMix64, doi 10.1145/2660193.2660195)."""
    number = (number * 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
