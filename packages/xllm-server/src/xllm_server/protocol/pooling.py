"""Bodies of the routes that compute prompts and generate nothing: embeddings, rerank, score. Knows nothing of vectors."""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_runtime.master import ChatInput
from xllm_server.protocol.chat import Message
from xllm_server.protocol.engine_request import EngineRequest, Int32, Int64
from xllm_server.protocol.token_inputs import texts_or_tokens

MAX_INPUTS = 2048
"""OpenAI's limit of one request."""


class PoolingUsage(msgspec.Struct):
    """Token counts of an answer without generated tokens."""

    prompt_tokens: int
    total_tokens: int


class PoolingRequest(EngineRequest, kw_only=True):
    """What the three requests share."""

    truncate_prompt_tokens: Int64 | None = None
    """Keep at most so many tokens of a text; -1 as many as the model takes. Left out, a longer text is refused."""
    user: str | None = None

    def check_pooling(self) -> None:
        """Check what types cannot say.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_engine_fields()
        if self.stream:
            raise InvalidRequest("Such a request cannot be streamed.", "stream")
        limit = self.truncate_prompt_tokens
        if limit is not None and limit != -1 and limit < 1:
            raise InvalidRequest(
                f"truncate_prompt_tokens must be -1 or from 1 up, not {limit}.", "truncate_prompt_tokens"
            )

    def truncate_to(self, max_model_len: int) -> int | None:
        """Return how many tokens a text may keep; None refuses longer ones than the model takes."""
        limit = self.truncate_prompt_tokens
        return None if limit is None else min(limit, max_model_len) if limit > 0 else max_model_len


class EmbeddingRequest(PoolingRequest, kw_only=True):
    """Body of /v1/embeddings: `input`, or `messages`."""

    input: str | list[str | list[Int32] | Int32] | None = None
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    messages: list[Message] | None = None
    """A conversation of which one vector is wanted, with images and videos where the model sees."""
    add_generation_prompt: bool | None = None
    """End the conversation where an answer would begin; false when left out."""
    task: Literal["embed", "mm_embed"] | None = None
    """mm_embed: what the model's vision tower makes of each image and video of `messages`, instead of a vector. Left out, it is
    embed, but for a model that was loaded for mm_embed."""
    encoding_format: Literal["float", "base64"] | None = None
    """base64 is that of little-endian float32 numbers."""
    dimensions: Int64 | None = None
    """Cut the vectors to so many numbers, and normalise what is left."""

    def wants_media(self, *, is_loaded_for_media: bool) -> bool:
        """Whether the task is mm_embed."""
        return is_loaded_for_media if self.task is None else self.task == "mm_embed"

    def check(self, *, is_media: bool) -> None:
        """Check what types cannot say, where the task is mm_embed or not; raises as `check_pooling` does."""
        self.check_pooling()
        if is_media and self.messages is None:
            raise InvalidRequest("The task mm_embed needs messages with images or videos.", "messages")
        if (self.input is None) == (self.messages is None):
            raise InvalidRequest("Give either input or messages.", "input")
        if self.messages is None:
            self.inputs()
        elif not self.messages:
            raise InvalidRequest("messages must not be empty.", "messages")
        elif self.truncate_prompt_tokens is not None:
            raise InvalidRequest("Conversations are not truncated.", "truncate_prompt_tokens")
        if is_media and self.dimensions is not None:
            raise InvalidRequest("Embeddings of media are not cut.", "dimensions")

    def chat(self) -> ChatInput:
        """Return the conversation; only where there are `messages`."""
        messages = msgspec.to_builtins(self.messages or [])
        return ChatInput(messages=messages, add_generation_prompt=bool(self.add_generation_prompt))

    def inputs(self) -> list[str | list[int]]:
        """Return the inputs one by one; raises `InvalidRequest` for none, an empty one, too many, or a mixture."""
        return texts_or_tokens(self.input or "", "input", MAX_INPUTS)


class Embedding(msgspec.Struct, tag_field="object", tag="embedding"):
    """The vector of one input."""

    index: int
    embedding: list[float] | str


class EmbeddedMedium(msgspec.Struct, tag_field="object", tag="mm_embedding", kw_only=True):
    """What the vision tower made of one image or video; the whole can be sent back in an `image_embeds` or `video_embeds` part."""

    index: int
    kind: Literal["image", "video"]
    data: list[list[float]] | str
    """Numbers row by row, or base64 of them as little-endian float32."""
    shape: tuple[int, int]
    dtype: Literal["float32"] = "float32"
    grid: tuple[int, int, int]
    """Patches in time, height and width."""
    timestamps: list[float]
    """Seconds of each frame of a video's grid; empty for images."""


class EmbeddingList(msgspec.Struct, tag_field="object", tag="list", kw_only=True):
    """Body of an answer of /v1/embeddings."""

    id: str
    created: int
    model: str
    data: list[Embedding] | list[EmbeddedMedium]
    usage: PoolingUsage


class Document(msgspec.Struct):
    """A document to rank, or that was ranked."""

    text: str


class RerankRequest(PoolingRequest, kw_only=True):
    """Body of /v1/rerank, in the shape of Jina's and Cohere's."""

    query: str
    documents: list[str | Document]
    top_n: Int64 | None = None
    """Return only the best so many; all when left out."""
    return_documents: bool | None = None
    """Whether results hold their documents' texts; true when left out."""

    def check(self) -> None:
        """Check what types cannot say; raises as `check_pooling` does."""
        self.check_pooling()
        if not self.query:
            raise InvalidRequest("query must not be empty.", "query")
        if not 1 <= len(self.documents) <= MAX_INPUTS:
            raise InvalidRequest(f"documents must hold 1 to {MAX_INPUTS} texts.", "documents")
        if not all(self.texts()):
            raise InvalidRequest("documents must not hold an empty text.", "documents")
        if self.top_n is not None and self.top_n < 1:
            raise InvalidRequest(f"top_n must be 1 or more, not {self.top_n}.", "top_n")

    def texts(self) -> list[str]:
        """Return the documents' texts."""
        return [document if isinstance(document, str) else document.text for document in self.documents]

    def pairs(self) -> list[tuple[str, str]]:
        """Return (query, text) of each document."""
        return [(self.query, text) for text in self.texts()]


class RerankResult(msgspec.Struct, omit_defaults=True):
    """One document's place in the request, and its score."""

    index: int
    relevance_score: float
    document: Document | None = None


class Reranking(msgspec.Struct, kw_only=True):
    """Body of an answer of /v1/rerank; the best comes first."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[RerankResult]


class ScoreRequest(PoolingRequest, kw_only=True):
    """Body of /v1/score: one text with each of many, or equally many in pairs."""

    text_1: str | list[str]
    text_2: str | list[str]

    def check(self) -> None:
        """Check what types cannot say; raises as `check_pooling` does."""
        self.check_pooling()
        for name, texts in (("text_1", self._first()), ("text_2", self._second())):
            if not 1 <= len(texts) <= MAX_INPUTS or not all(texts):
                raise InvalidRequest(f"{name} must hold 1 to {MAX_INPUTS} texts, none of them empty.", name)
        if len(self._first()) not in (1, len(self._second())):
            raise InvalidRequest("text_1 must be one text, or have as many as text_2.", "text_1")

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs to score."""
        first, second = self._first(), self._second()
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    def _first(self) -> list[str]:
        return [self.text_1] if isinstance(self.text_1, str) else self.text_1

    def _second(self) -> list[str]:
        return [self.text_2] if isinstance(self.text_2, str) else self.text_2


class Score(msgspec.Struct, tag_field="object", tag="score"):
    """How well one pair belongs together."""

    index: int
    score: float


class ScoreList(msgspec.Struct, tag_field="object", tag="list", kw_only=True):
    """Body of an answer of /v1/score."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage
