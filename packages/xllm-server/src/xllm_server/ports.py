"""What the server needs of a master, no more: the real one fits, and so does a fake without torch.

Knows nothing of how a master works. All methods may be called on any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Unpack, runtime_checkable

from xllm_framework.request import RequestOutput, SamplingParams
from xllm_framework.request.messages import EngineReady, EngineStats, PauseMode
from xllm_runtime.master import ChatInput, PreparedRequest
from xllm_runtime.master.pooling_requests import PoolingRequests
from xllm_runtime.master.prepared_request import RequestOptions
from xllm_runtime.master.scoring import Scorer


class Tokenizer(Protocol):
    """From text to token ids and back."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `ids`."""

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the protocol's name
        """Return the bytes that token `id` adds to a text; they need not be whole characters."""

    def is_special(self, id: int) -> bool:  # noqa: A002  # the protocol's name
        """Whether `id` is a control token and not text."""


@runtime_checkable
class ProfiledMaster(Protocol):
    """A master whose engine can record what it does. Neither call waits: `stats.profile` says what became of it."""

    @property
    def stats(self) -> EngineStats:
        """The engine's newest gauges and counters."""

    def start_profile(self) -> None:
        """Begin to record."""

    def stop_profile(self) -> None:
        """End the recording and write it."""


class Master(Protocol):
    """The front side of a model that is loaded."""

    @property
    def backend(self) -> str:
        """The kind of model: llm, vlm, dit or rec."""

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def ready(self) -> EngineReady:
        """What the engine said when it was ready: limits, device, implementation."""

    @property
    def stats(self) -> EngineStats:
        """The engine's newest gauges and counters."""

    @property
    def pooling(self) -> PoolingRequests:
        """Makes embedding requests and finishes their vectors."""

    @property
    def scorer(self) -> Scorer:
        """Scores pairs of texts."""

    def prepare_completion(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        add_special_tokens: bool = True,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Tokenise and check; blocks. Raises `XLLMError`."""

    def prepare_chat(
        self, chat: ChatInput, params: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Apply the chat template, tokenise and check; blocks. Raises `XLLMError`."""

    def tokenize_chat(self, chat: ChatInput) -> list[int]:
        """Apply the chat template and tokenise; blocks. Raises `XLLMError`."""

    def submit(self, prepared: PreparedRequest, on_output: Callable[[RequestOutput], None]) -> None:
        """Start the request; does not block. `on_output` gets deltas on another thread until one is `finished`."""

    def cancel(self, request_id: str) -> None:
        """Give the request up; unknown ids are ignored."""

    def pause(self, mode: PauseMode) -> None:
        """Stop computing; does not wait: `stats.pause_state` says when that is so."""

    def resume(self) -> None:
        """Go on; does not wait."""

    def health(self) -> str | None:
        """Return None when all is well, else the reason."""

    def on_engine_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason, on another thread, once the engine has died."""

    def close(self) -> None:
        """Cancel what runs and end the engine; blocks. Calling it again does nothing."""
