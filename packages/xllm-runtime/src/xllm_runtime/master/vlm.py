"""The master of a vision-language model: a language model's master whose conversations may bring images and videos.

Knows nothing of files, URLs or pixels (`processors`), of scheduling or of tensors.
"""

from __future__ import annotations

import queue
from typing import Any, Unpack

from xllm_framework.chat_template import load_chat_template
from xllm_framework.config import XLLMConfig
from xllm_framework.model import load_model_args
from xllm_framework.model.source import ModelFiles
from xllm_framework.request import SamplingParams
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.dispatcher import DispatcherEvent
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready
from xllm_runtime.master.llm import LLMMaster
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.vlm_requests import VLMRequestFactory
from xllm_runtime.processors.media_loader import MediaLoader
from xllm_runtime.processors.media_processor import MediaProcessor, load_media_processor


class VLMMaster(LLMMaster):
    """Serves one vision-language model. All methods can be called from any thread; `create` makes one."""

    backend = "vlm"

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
        processor = load_media_processor(config.multimodal, files, args, tokenizer)
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
        )
        master.take_media(processor)
        return master

    def take_media(self, processor: MediaProcessor) -> None:
        """Prepare prompts with media by the rules of `processor` from now on."""
        self._loader = MediaLoader(self.config.multimodal, processor)
        self._factory: VLMRequestFactory = VLMRequestFactory(
            self.tokenizer,
            self.chat_template,
            processor,
            self._loader,
            max_model_len=self.ready.max_model_len,
            vocab_size=self.ready.vocab_size,
            seed=self.config.scheduler.seed,
        )

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
        return self._factory.from_media(prompt, parts, params, **options)

    def close(self) -> None:
        """See `LLMMaster.close`."""
        super().close()
        self._loader.close()
