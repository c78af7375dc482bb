"""The master of a vision-language model: a language model's master whose conversations may bring images and videos.

Knows nothing of files, URLs or pixels (`processors`), of scheduling or of tensors.
"""

from __future__ import annotations

import queue
from typing import Any, Unpack

from xllm_framework.chat_template import load_chat_template
from xllm_framework.config import XLLMConfig
from xllm_framework.model import load_model_args
from xllm_framework.model.pooling import load_pooling
from xllm_framework.model.source import ModelFiles
from xllm_framework.request import SamplingParams
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.dispatcher import DispatcherEvent
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready
from xllm_runtime.master.llm import LLMMaster
from xllm_runtime.master.pooling_requests import PoolingRequests
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import NO_OUTPUT
from xllm_runtime.master.tasks import check_generates
from xllm_runtime.master.transformers_requests import TransformersRequestFactory
from xllm_runtime.master.vlm_requests import VLMRequestFactory
from xllm_runtime.processors.media_loader import MediaLoader
from xllm_runtime.processors.media_processor import MediaProcessor, is_left_to_transformers, load_media_processor
from xllm_runtime.processors.transformers_inputs import TransformersInputs


class VLMMaster(LLMMaster):
    """Serves one vision-language model. All methods can be called from any thread; `create` makes one."""

    backend = "vlm"
    _loader: MediaLoader | None = None

    @classmethod
    def attach(
        cls,
        config: XLLMConfig,
        files: ModelFiles,
        client: EngineClient,
        events: queue.SimpleQueue[DispatcherEvent],
    ) -> VLMMaster:
        """See `LLMMaster.attach`."""
        args = load_model_args(files)
        tokenizer = load_tokenizer(files)
        is_left = is_left_to_transformers(config.model, args.architecture)
        processor = None if is_left else load_media_processor(config.multimodal, files, args, tokenizer)
        inputs = TransformersInputs(config.multimodal, files) if is_left else None
        chat_template = load_chat_template(files, config.model.chat_template)
        master = cls(
            config,
            client,
            wait_ready(events),
            events,
            model_name=model_name(config, files),
            model_args=args,
            tokenizer=tokenizer,
            chat_template=chat_template,
            pooling=load_pooling(files, config.model),
        )
        if processor is not None:
            master.take_media(processor)
        if inputs is not None:
            master.take_inputs(inputs)
        return master

    def take_media(self, processor: MediaProcessor) -> None:
        """Prepare prompts with media by the rules of `processor` from now on."""
        self._loader = MediaLoader(self.config.multimodal, processor)
        self._use(
            VLMRequestFactory(
                self.tokenizer,
                self.chat_template,
                processor,
                self._loader,
                max_model_len=self.ready.max_model_len,
                vocab_size=self.ready.vocab_size,
                seed=self.config.scheduler.seed,
            )
        )

    def take_inputs(self, inputs: TransformersInputs) -> None:
        """Prepare prompts with images by the model's own processor in transformers from now on."""
        self._use(
            TransformersRequestFactory(
                self.tokenizer,
                self.chat_template,
                inputs,
                max_model_len=self.ready.max_model_len,
                vocab_size=self.ready.vocab_size,
                seed=self.config.scheduler.seed,
            )
        )

    def _use(self, factory: VLMRequestFactory | TransformersRequestFactory) -> None:
        self._factory: VLMRequestFactory | TransformersRequestFactory = factory
        self.pooling = PoolingRequests(self._factory, self.model_args, self.pooling.settings, self.config.model)

    def prepare_media_embedding(
        self, messages: list[dict[str, Any]], **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Prepare a request for the embeddings of a conversation's images and videos; texts in it mean nothing.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served, or has no media; `param` names the field.
        """
        return self._factory.from_media_alone(messages, **options)

    def prepare_media_completion(
        self,
        prompt: str | list[int],
        parts: list[dict[str, Any]],
        params: SamplingParams,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Prepare a prompt that holds the model's own marks, one for each content part of `parts`, in order.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served; `param` names the field.
        """
        check_generates(self.config.model, self.model_args)
        return self._factory.from_media(prompt, parts, params, **options)

    def prepare_media_vector(
        self, prompt: str | list[int], parts: list[dict[str, Any]], **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Prepare a request for the vector of such a prompt; raises as `prepare_media_completion` does."""
        return self.pooling.pooled(self._factory.from_media(prompt, parts, NO_OUTPUT, **options))

    def close(self) -> None:
        """See `LLMMaster.close`."""
        super().close()
        if self._loader is not None:
            self._loader.close()
