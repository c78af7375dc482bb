"""Requests for vectors of prompts: embeddings, and what scores are made of. Nothing is generated for them.

Knows nothing of JSON shapes or of steps. A vector is cut before it is normalised (Matryoshka, arXiv 2205.13147).
"""

from __future__ import annotations

import dataclasses
from typing import Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from xllm_framework.config import ModelConfig
from xllm_framework.errors import InvalidRequest
from xllm_framework.model import ModelArgs
from xllm_framework.model.pooling import PoolingSettings
from xllm_framework.request import RequestOutput
from xllm_framework.request.pooling_params import PoolingParams
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import RequestFactory
from xllm_runtime.master.tasks import check_embeds

Vector = npt.NDArray[np.float32]


class PoolingRequests:
    """Prepares embedding requests for one model and finishes their vectors. All methods can be called from any thread."""

    def __init__(
        self, factory: RequestFactory, args: ModelArgs, settings: PoolingSettings, config: ModelConfig | None = None
    ) -> None:
        self._factory = factory
        self._params = PoolingParams(settings.kind)
        self._args = args
        self._config = config or ModelConfig()
        self.settings = settings
        self.is_for_media = self._config.task == "mm_embed"
        """Whether the model was loaded for embeddings of images and videos alone."""
        self.num_dimensions = args.hidden_size
        """Length of a vector that is not cut."""

    def prepare(
        self,
        prompt: str | list[int],
        *,
        param: str = "input",
        truncate_to: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Tokenise and check a text, or check token ids, of which an embedding is wanted.

        Args:
            param: what the caller calls the prompt.
            truncate_to: keep at most so many tokens, the tokenizer's special ones and the first of the text.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served; `param` names the field.
        """
        check_embeds(self._config, self._args)
        return self._factory.from_pooling(prompt, self._params, param=param, truncate_to=truncate_to, **options)

    def pooled(self, prepared: PreparedRequest) -> PreparedRequest:
        """Return `prepared` as a request for the vector of its prompt; raises `InvalidRequest` as `prepare` does."""
        check_embeds(self._config, self._args)
        return dataclasses.replace(prepared, message=msgspec.structs.replace(prepared.message, pooling=self._params))

    def prepare_chat(self, chat: ChatInput, **options: Unpack[RequestOptions]) -> PreparedRequest:
        """Apply the chat template to a conversation, with images and videos where the model sees, and go on as `prepare`."""
        check_embeds(self._config, self._args)
        return self._factory.from_pooled_chat(chat, self._params, **options)

    def check_dimensions(self, dimensions: int | None) -> None:
        """Check a wanted length; None is the whole.

        Raises:
            InvalidRequest: the model's vectors are shorter.
        """
        if dimensions is not None and not 1 <= dimensions <= self.num_dimensions:
            raise InvalidRequest(
                f"dimensions must be from 1 to {self.num_dimensions} for this model, not {dimensions}.", "dimensions"
            )

    def vector(self, output: RequestOutput, dimensions: int | None = None) -> Vector:
        """Return the embedding, float32 [dimensions], of a finished request without an error."""
        pooled = pooled_vector(output)[:dimensions]
        return normalized(pooled) if self.settings.is_normalized else pooled


def pooled_vector(output: RequestOutput) -> Vector:
    """Return what the engine side made of a finished request that wanted a vector, and did not fail."""
    pooled = output.outputs[0].pooled if output.outputs else None
    if pooled is None:
        raise ValueError("The request wanted no vector, or has not finished.")
    return pooled


def normalized(vector: Vector) -> Vector:
    """Return `vector` at Euclidean length 1; one of zeros stays."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length > 0.0 else vector
