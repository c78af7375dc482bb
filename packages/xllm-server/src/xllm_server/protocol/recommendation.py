"""Bodies of the rec backend's completions and chats, and of their answers. Knows nothing of tokenizers or of searches.

Tensors are named arrays: base64 of little-endian bytes in JSON, bytes as they are in msgpack.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidRequest
from xllm_framework.request.rec_messages import InputTensor
from xllm_server.protocol.engine_request import EngineRequest, Int32, Int64
from xllm_server.protocol.usage import Usage

MAX_PROMPTS = 64
_DTYPES: dict[str, Any] = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}


class TensorBody(msgspec.Struct):
    """A named array of a request or an answer."""

    name: str
    data_type: Literal["FP32", "INT32", "INT64", "BYTES"]
    shape: list[int]
    contents: bytes | list[str]
    """Row by row, little endian; texts of type BYTES as a list."""


class RecommendationFields(EngineRequest, kw_only=True):
    """What completions and chats have in common; see `SearchParams` for the search's own fields."""

    beam_width: Int32 | None = None
    """Paths that are kept in each round; the server's when left out."""
    num_return_sequences: Int32 | None = None
    """Best paths that come back; all when left out."""
    n: Int32 | None = None
    """OpenAI's name of `num_return_sequences`."""
    max_tokens: Int32 | None = None
    """Tokens of a path: those of an item when left out."""
    use_beam_search: bool | None = None
    """False draws `beam_width` paths by chance."""
    temperature: float | None = None
    """Of the draws, as the two below."""
    top_p: float | None = None
    top_k: Int32 | None = None
    seed: Int64 | None = None

    def check_search(self) -> None:
        """Check what types cannot say.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_engine_fields()
        if self.stream:
            raise InvalidRequest("Recommendations come all at once: leave stream out.", "stream")
        if self.use_beam_search is not False:
            for name in ("temperature", "top_p", "top_k"):
                if getattr(self, name) is not None:
                    raise InvalidRequest(f"{name} belongs to drawn paths: send use_beam_search false.", name)
        if self.n is not None and self.num_return_sequences is not None:
            raise InvalidRequest("n and num_return_sequences mean the same: send one.", "n")

    def search(self) -> dict[str, Any]:
        """Return the given fields under the names of `SearchParams`; None is not given."""
        return {
            "beam_width": self.beam_width,
            "num_return_sequences": self.num_return_sequences if self.n is None else self.n,
            "num_rounds": self.max_tokens,
            "is_sampled": None if self.use_beam_search is None else not self.use_beam_search,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }


class RecommendationRequest(RecommendationFields, kw_only=True):
    """Body of a completion request of the rec backend."""

    prompt: str | list[str | list[Int32] | Int32] | None = None
    """A text, a list of texts, a list of token ids, or a list of such lists: the user's history."""
    logprobs: Int32 | bool | None = None
    """Whether choices carry the log-probability of each token."""
    add_special_tokens: bool | None = None
    tensors: list[TensorBody] | None = None
    """Embeddings that the model takes in place of tokens, or beside them."""

    def prompts(self) -> list[str | list[int] | None]:
        """Return the prompts one by one; None where tensors stand for one.

        Raises:
            InvalidRequest: none, an empty one, too many, or texts and tokens mixed.
        """
        if self.prompt is None and self.tensors:
            return [None]
        prompts: list[str | list[int] | None]
        given = self.prompt or []
        if isinstance(given, str):
            prompts = [given]
        elif given and all(isinstance(item, int) for item in given):
            prompts = [[item for item in given if isinstance(item, int)]]
        elif any(isinstance(item, int) for item in given):
            raise InvalidRequest("prompt must not mix token ids with texts or lists.", "prompt")
        else:
            prompts = [item for item in given if not isinstance(item, int)]
        if not prompts or not all(prompts):
            raise InvalidRequest("prompt must not be empty.", "prompt")
        if len(prompts) > MAX_PROMPTS:
            raise InvalidRequest(f"prompt holds {len(prompts)} prompts, but at most {MAX_PROMPTS} are taken.", "prompt")
        return prompts


class ChatRecommendationRequest(RecommendationFields, kw_only=True):
    """Body of a chat request of the rec backend."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class RecommendationChoice(msgspec.Struct, omit_defaults=True):
    """One path, best first."""

    index: int
    text: str | msgspec.UnsetType = msgspec.UNSET
    message: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] = []
    score: float = 0.0
    """Sum of the tokens' log-probabilities."""
    item_ids: list[int] = []
    """Items that the tokens stand for."""
    document_ids: list[str] = []
    item_types: list[str] = []
    logprobs: dict[str, list[float]] | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str = "stop"


class Recommendation(msgspec.Struct, kw_only=True):
    """Body of an answer."""

    id: str
    object: Literal["text_completion", "chat.completion"]
    created: int
    model: str
    choices: list[RecommendationChoice]
    usage: Usage
    output_tensors: list[TensorBody]
    """rec_result: INT64 item ids, or INT32 tokens where items are not converted; with what else the server brings."""
    catalogue_version: int
    """Counts the changes of the catalogue; 0 without one."""


class CatalogueRequest(msgspec.Struct):
    """Body of /catalogue."""

    path: str
    """An item file that the server can read."""
    extended: bool = False
    """Whether it is of the extended form."""


def input_tensors(bodies: list[TensorBody] | None) -> tuple[InputTensor, ...]:
    """Return the tensors of a request as the engine takes them.

    Raises:
        InvalidRequest: a type is not served, or contents and shape do not fit; `param` names the tensor.
    """
    tensors = []
    for index, body in enumerate(bodies or []):
        where = f"tensors[{index}]"
        dtype = _DTYPES.get(body.data_type)
        if dtype is None or not isinstance(body.contents, bytes):
            raise InvalidRequest(f"{where} is of type {body.data_type}, but FP32 and INT64 are taken.", where)
        if not body.shape or min(body.shape) < 1 or len(body.shape) > 3:
            raise InvalidRequest(f"{where} has shape {body.shape}, but 1 to 3 positive sizes are taken.", where)
        expected = int(np.prod(body.shape, dtype=np.int64)) * dtype.itemsize
        if expected != len(body.contents):
            raise InvalidRequest(f"{where} has {len(body.contents)} bytes, but its shape needs {expected}.", where)
        name: Literal["float32", "int64"] = "float32" if body.data_type == "FP32" else "int64"
        tensors.append(InputTensor(body.name, name, tuple(body.shape), body.contents))
    return tuple(tensors)


def array_tensor(name: str, array: npt.NDArray[np.generic]) -> TensorBody:
    """Return an array of an answer as a tensor."""
    types: dict[str, Literal["FP32", "INT32", "INT64"]] = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}
    return TensorBody(name, types[array.dtype.name], list(array.shape), array.tobytes())
