"""The master of a language model: the front side's one object. What servers, the offline API and the C API talk to.

It prepares requests (template, tokens, checks), hands them to the engine side through an `EngineClient`, and brings
outputs to callbacks through the dispatcher. Knows nothing of HTTP, of scheduling or of tensors.
"""

from __future__ import annotations

import queue
from typing import Unpack

from xllm_framework.chat_template import ChatTemplate, load_chat_template
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, load_model_args
from xllm_framework.model.pooling import DEFAULT_POOLING, PoolingSettings, load_pooling
from xllm_framework.model.source import ModelFiles
from xllm_framework.request import SamplingParams
from xllm_framework.request.messages import EngineReady, StartProfile, StopProfile
from xllm_framework.tokenizer import Tokenizer, load_tokenizer
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.dispatcher import DispatcherEvent, OnOutput, RequestOutputDispatcher
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready
from xllm_runtime.master.front_side import FrontSide
from xllm_runtime.master.pooling_requests import PoolingRequests
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import NO_OUTPUT, RequestFactory
from xllm_runtime.master.scoring import select_scorer
from xllm_runtime.master.tasks import check_generates


class LLMMaster(FrontSide):
    """Serves one language model. All methods can be called from any thread; `create` makes one."""

    backend = "llm"
    """Which routes a server offers over it."""

    def __init__(
        self,
        config: XLLMConfig,
        client: EngineClient,
        ready: EngineReady,
        events: queue.SimpleQueue[DispatcherEvent],
        *,
        model_name: str,
        model_args: ModelArgs,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        pooling: PoolingSettings = DEFAULT_POOLING,
    ) -> None:
        super().__init__(config, client, ready, model_name, max_running=config.scheduler.max_num_seqs)
        self.model_args = model_args
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._dispatcher: RequestOutputDispatcher = RequestOutputDispatcher(
            events, tokenizer, self._abort, self._on_failure
        )
        self._dispatcher.start()
        client.redirect(self._dispatcher.take)
        self._factory = RequestFactory(
            tokenizer,
            chat_template,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            seed=config.scheduler.seed,
        )
        self.pooling = PoolingRequests(self._factory, model_args, pooling, config.model)
        """Embeddings of prompts."""
        self.scorer = select_scorer(config.model, model_name, model_args, tokenizer, self._factory, self.pooling)
        """Scores of pairs of texts."""

    @classmethod
    def create(cls, config: XLLMConfig, *, engine_process: bool) -> LLMMaster:
        """Load the model and return once it takes requests; see `create_master`."""
        from xllm_runtime.master.selection import create_master

        return create_master(config, engine_process=engine_process)

    @classmethod
    def attach(
        cls,
        config: XLLMConfig,
        files: ModelFiles,
        client: EngineClient,
        events: queue.SimpleQueue[DispatcherEvent],
    ) -> LLMMaster:
        """Make the front side while the engine side behind `client` loads `files`; return once that is ready.

        Raises:
            XLLMError: the model cannot be served; the class and the sentence are the engine side's own.
        """
        args = load_model_args(files)
        pooling = load_pooling(files, config.model)
        tokenizer = load_tokenizer(files)
        chat_template = load_chat_template(files, config.model.chat_template)
        return cls(
            config,
            client,
            wait_ready(events),
            events,
            model_name=model_name(config, files),
            model_args=args,
            tokenizer=tokenizer,
            chat_template=chat_template,
            pooling=pooling,
        )

    def prepare_completion(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        add_special_tokens: bool = True,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Tokenise and check a prompt (text or token ids). May take long for a long text; call it off the event loop.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served; `param` names the field.
        """
        check_generates(self.config.model, self.model_args)
        return self._factory.from_prompt(prompt, params, add_special_tokens=add_special_tokens, **options)

    def prepare_chat(
        self, chat: ChatInput, params: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Apply the chat template, then do as `prepare_completion` does, and raise as it does."""
        check_generates(self.config.model, self.model_args)
        return self._factory.from_chat(chat, params, **options)

    def tokenize_chat(self, chat: ChatInput) -> list[int]:
        """Return the token ids of a conversation's prompt, whatever the model is loaded for; raises as `prepare_chat` does."""
        return self._factory.from_chat(chat, NO_OUTPUT).prompt_token_ids

    def submit(self, prepared: PreparedRequest, on_output: OnOutput) -> None:
        """Start a prepared request; never blocks.

        Args:
            on_output: gets deltas on the dispatcher's thread, in order, until one with `finished=True`; it must be quick.

        Raises:
            QueueFull: as many requests wait as may.
            ShuttingDown: `drain` or `close` was called.
            EngineDead: the engine side has ended.
        """
        self._check_room()
        if self.stats.num_waiting >= max(self.config.scheduler.max_num_waiting, 1):
            raise self._queue_full()
        self._dispatcher.add(prepared, on_output)
        self._client.send(prepared.message)

    def call_back_from_steps(self) -> None:
        """Let callbacks run on the thread that computes steps, where a step brings few sequences something.

        Their tokens come sooner: no thread must be woken, or wait for the interpreter's lock, which the next step takes.
        Only for callbacks that never wait. Changes nothing where the engine runs in a process of its own.
        """
        self._client.redirect_steps(self._dispatcher.receive)

    def start_profile(self) -> None:
        """Let the engine record what it does; does not wait: `stats.profile` counts these calls and says what became of them."""
        self._client.send(StartProfile())

    def stop_profile(self) -> None:
        """Let the engine end the recording and write it; does not wait, as `start_profile`."""
        self._client.send(StopProfile())
