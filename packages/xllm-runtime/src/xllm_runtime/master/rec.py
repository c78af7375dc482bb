"""The master of a recommender: the front side's one object. What servers, the offline API and the C API talk to.

Knows nothing of HTTP, of scheduling or of tensors.
"""

from __future__ import annotations

import itertools
import queue
from pathlib import Path
from typing import Any, Unpack

from xllm_framework.chat_template import ChatTemplate, load_chat_template
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs
from xllm_framework.model.source import ModelFiles
from xllm_framework.rec import InvalidCatalogue
from xllm_framework.rec.onerec_args import is_onerec, load_rec_args
from xllm_framework.request.messages import EngineReady, PauseMode
from xllm_framework.request.rec_messages import CatalogueChanged, ChangeCatalogue, InputTensor, SearchParams
from xllm_framework.tokenizer import Tokenizer, load_tokenizer
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready
from xllm_runtime.master.front_side import FrontSide
from xllm_runtime.master.prepared_request import RequestOptions
from xllm_runtime.master.rec_dispatcher import OnSearchOutput, SearchDispatcher
from xllm_runtime.master.rec_request import PreparedSearch, SearchFactory, SearchLimits


class RecMaster(FrontSide):
    """Serves one recommender. All methods can be called from any thread; `create_master` makes one."""

    backend = "rec"
    """Which routes a server offers over it."""

    def __init__(
        self,
        config: XLLMConfig,
        client: EngineClient,
        ready: EngineReady,
        events: queue.SimpleQueue[Any],
        *,
        model_name: str,
        model_args: ModelArgs,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
    ) -> None:
        super().__init__(config, client, ready, model_name, max_running=config.scheduler.max_num_seqs)
        self.model_args = model_args
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._dispatcher: SearchDispatcher = SearchDispatcher(events, tokenizer, self._abort, self._on_failure)
        self._dispatcher.start()
        limits = SearchLimits(
            ready.max_model_len,
            ready.vocab_size,
            config.rec.max_decode_rounds,
            hidden_size=model_args.hidden_size,
            is_encoder_decoder=is_onerec(model_args),
            takes_embeddings=ready.model_impl == "python",
        )
        self._factory = SearchFactory(tokenizer, chat_template, limits, seed=config.scheduler.seed)
        self._numbers = itertools.count()

    @classmethod
    def attach(
        cls, config: XLLMConfig, files: ModelFiles, client: EngineClient, events: queue.SimpleQueue[Any]
    ) -> RecMaster:
        """Make the front side while the engine side behind `client` loads `files`; return once that is ready.

        Raises:
            XLLMError: the model cannot be served; the class and the sentence are the engine side's own.
        """
        args = load_rec_args(files)
        has_texts = not is_onerec(args) or (files.path / "tokenizer.json").is_file()
        tokenizer = load_tokenizer(files) if has_texts else None
        chat_template = load_chat_template(files, config.model.chat_template) if has_texts else None
        return cls(
            config,
            client,
            wait_ready(events),
            events,
            model_name=model_name(config, files),
            model_args=args,
            tokenizer=tokenizer,
            chat_template=chat_template,
        )

    def search_params(self, **given: Any) -> SearchParams:
        """Return how candidates are found: what is `given`, and this engine's defaults for the rest (None is not given).

        Raises:
            InvalidRequest: a value is out of range; `param` names the field.
        """
        rec = self.config.rec
        defaults = {"beam_width": rec.beam_width, "num_rounds": rec.max_decode_rounds}
        return SearchParams(**defaults | {name: value for name, value in given.items() if value is not None})

    def prepare_search(
        self,
        prompt: str | list[int] | None,
        params: SearchParams,
        *,
        add_special_tokens: bool = True,
        seed: int | None = None,
        tensors: tuple[InputTensor, ...] = (),
        **options: Unpack[RequestOptions],
    ) -> PreparedSearch:
        """Tokenise and check a prompt: a text, token ids, or None where `tensors` stand for it. Call it off the event loop.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served; `param` names the field.
        """
        return self._factory.from_prompt(
            prompt, params, add_special_tokens=add_special_tokens, seed=seed, tensors=tensors, **options
        )

    def prepare_chat_search(
        self, chat: ChatInput, params: SearchParams, *, seed: int | None = None, **options: Unpack[RequestOptions]
    ) -> PreparedSearch:
        """Apply the chat template, then do as `prepare_search` does, and raise as it does."""
        return self._factory.from_chat(chat, params, seed=seed, **options)

    def submit(self, prepared: PreparedSearch, on_output: OnSearchOutput) -> None:
        """Start a prepared search; never blocks.

        Args:
            on_output: gets the one output on the dispatcher's thread; it must be quick.

        Raises:
            QueueFull: as many requests wait as may.
            ShuttingDown: `drain` or `close` was called.
            EngineDead: the engine side has ended.
        """
        self._check_room()
        self._dispatcher.add(prepared, on_output)
        self._client.send(prepared.message)

    def change_catalogue(
        self, path: Path | None, *, is_extended: bool = False, timeout_s: float = 60.0
    ) -> CatalogueChanged:
        """Serve the catalogue in `path` from now on, or with None the one before it again; waits until that is so.

        Searches under way keep theirs, and none waits.

        Raises:
            InvalidCatalogue: the old one is still served; says why.
            EngineDead: the engine side has ended.
            TimeoutError: reading it takes longer; it will be served all the same once it is read.
        """
        number = next(self._numbers)
        future = self._dispatcher.expect_change(number)
        self._client.send(ChangeCatalogue(number, "" if path is None else str(path.absolute()), is_extended))
        answer = future.result(timeout_s)
        if answer.error is not None:
            raise InvalidCatalogue(answer.error)
        return answer

    def pause(self, mode: PauseMode) -> None:
        """Let the engine start no more batches; does not wait: `stats.pause_state` says when none runs.

        With mode abort, the searches at hand end now.
        """
        if mode == "abort":
            self._dispatcher.cancel_all()
        super().pause(mode)
