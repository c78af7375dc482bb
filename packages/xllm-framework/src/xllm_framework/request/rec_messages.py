"""What the two sides of the rec backend say beside the messages that all backends share. Plain data, msgpack on the wire."""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm_framework.errors import InvalidRequest

MAX_BEAM_WIDTH = 512
MAX_ROUNDS = 8
SPARSE_EMBEDDING = "sparse_embedding"
DECODER_CONTEXT = "decoder_context_embedding"
"""Tensors of an encoder-decoder: [history, hidden] in place of the prompt, and [context, hidden] before every path."""
INPUT_TOKENS = "LLM_REC_INPUT_TOKENS"
INPUT_INDICES = "LLM_REC_INPUT_INDICES"
INPUT_EMBEDDING = "LLM_REC_INPUT_EMBEDDING"
"""Tensors of a language model: int64 [prompt] token ids, and [n] places of them with [n, hidden] embeddings instead."""


class SearchParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How candidates are found.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """

    beam_width: int = 128
    """Paths that are kept in each round; with `is_sampled`, paths that are drawn."""
    num_return_sequences: int | None = None
    """Best paths that come back; None is all."""
    num_rounds: int = 3
    """Tokens of a path."""
    is_sampled: bool = False
    """Draw each path by chance instead of searching for the most probable ones."""
    temperature: float = 1.0
    """Of the draws; above 0."""
    top_k: int = 0
    """Tokens that a draw chooses among; 0 is all."""
    top_p: float = 1.0
    """Probability that the tokens have together which a draw chooses among."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("beam_width", 1, MAX_BEAM_WIDTH),
            ("num_rounds", 1, MAX_ROUNDS),
            ("top_k", 0, 2**31 - 1),
            ("top_p", 1e-6, 1.0),
            ("temperature", 1e-4, 1e4),
        ):
            if not low <= getattr(self, name) <= high:
                raise InvalidRequest(f"{name} must be from {low:g} to {high:g}, not {getattr(self, name):g}.", name)
        wanted = self.num_return_sequences
        if wanted is not None and not 1 <= wanted <= self.beam_width:
            raise InvalidRequest(
                f"num_return_sequences must be from 1 to beam_width {self.beam_width}, not {wanted}.",
                "num_return_sequences",
            )


class InputTensor(msgspec.Struct, frozen=True, array_like=True):
    """An array that a request brings, row by row, float32 or int64, little endian."""

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int, ...]
    content: bytes


class AddSearch(msgspec.Struct, tag="search", array_like=True, frozen=True):
    """Start a search. Checked by the front side; the engine side trusts lengths, token ids and shapes."""

    request_id: str
    prompt_token_ids: list[int]
    params: SearchParams
    arrival_time_s: float
    seed: int = 0
    priority: int = 0
    deadline_s: float | None = None
    cache_salt: str = ""
    tensors: tuple[InputTensor, ...] = ()


class ChangeCatalogue(msgspec.Struct, tag="change_catalogue", array_like=True, frozen=True):
    """Serve another catalogue from now on, or with an empty `path` the one before it again."""

    number: int
    """Comes back in the answer."""
    path: str = ""
    is_extended: bool = False


class CatalogueChanged(msgspec.Struct, tag="catalogue_changed", array_like=True, frozen=True):
    """What became of a `ChangeCatalogue`; with `error` set, the old one is still served."""

    number: int
    version: int = 0
    num_items: int = 0
    num_paths: int = 0
    error: str | None = None


class FoundPath(msgspec.Struct, array_like=True, frozen=True):
    """One path, and the items that its tokens stand for."""

    token_ids: list[int]
    logprobs: list[float]
    """Of each token, over the whole vocabulary."""
    score: float
    """Their sum."""
    item_ids: list[int] = []
    document_ids: list[str] = []
    """Of an extended catalogue; one an item."""
    kinds: list[str] = []


class FoundPaths(msgspec.Struct, array_like=True, frozen=True):
    """The end of one search: its paths, best first (drawn ones as they were drawn), or an error."""

    request_id: str
    paths: list[FoundPath] = []
    num_cached_tokens: int = 0
    first_scheduled_time_s: float | None = None
    catalogue_version: int = 0
    error: str | None = None
    error_kind: str | None = None
