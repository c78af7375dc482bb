"""What libxllm and its engine process say to each other. Plain data; knows nothing of how the bytes travel.

A frame is the length of its message (four bytes, little-endian), then the message: a msgpack array whose first element
names the kind. Fields are only ever added at the end, and readers ignore further fields and unknown kinds, so that either
side may be older by a minor version. csrc/protocol.cpp writes the same messages and csrc/message_reader.cpp reads them;
change all together.

One exchange: `Start`, then `Ready` or `Failed`; then any number of `Generate`, `Pool`, `Search`, `Cancel` and `Stats` one
way, and of `Outputs`, `Vectors`, `Paths` and `StatsReply` the other way; `Failed` when the engine ends; `Shutdown` or a
closed socket ends it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from xllm_framework.request.messages import EngineStats

PROTOCOL_VERSION = 1
MAX_FRAME_SIZE = 256 << 20
"""Bytes of the largest message that either side takes."""


class Start(msgspec.Struct, tag="start", array_like=True, frozen=True):
    """The first message. To a running engine `model` and `options_json` are empty."""

    protocol_version: int
    model: str
    options_json: str
    """A JSON object of option names and values."""


class Generate(msgspec.Struct, tag="generate", array_like=True, frozen=True):
    """Start a request. Exactly one of the four inputs is given. `id` is unique within the connection."""

    id: int
    prompt: str | None
    token_ids: list[int] | None
    messages: list[tuple[str, str]] | None
    """(role, content) pairs."""
    messages_json: str | None
    sampling: msgspec.Raw
    """Fields of `SamplingParams`, a map; requests often repeat it, and then it need not be read again."""
    request_id: str | None
    priority: int
    is_offline: bool
    cache_salt: str
    tools_json: str | None
    response_format_json: str | None
    template_kwargs_json: str | None
    options_json: str | None
    """A JSON object of `SamplingParams` fields that wins over `sampling`."""
    tool_choice: str | None = None
    """auto, none, required, or a tool's name."""


class Pool(msgspec.Struct, tag="pool", array_like=True, frozen=True):
    """Ask for vectors of texts or of token ids; with a `query`, for how well each text fits it. `Vectors` answers."""

    id: int
    query: str | None
    texts: list[str]
    token_ids: list[int] | None
    dimensions: int
    """0 is all."""
    truncate_to: int
    """Tokens of a text that are kept; -1 as many as the model takes, 0 refuses longer texts."""
    request_id: str | None
    priority: int
    is_offline: bool
    cache_salt: str


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """A named array, row by row, little endian; nothing of it is checked yet."""

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int, ...]
    content: bytes


class Search(msgspec.Struct, tag="search", array_like=True, frozen=True):
    """Ask a recommender what follows a history: one of the three inputs, or `tensors` in its place. `Paths` answers."""

    id: int
    prompt: str | None
    token_ids: list[int] | None
    messages: list[tuple[str, str]] | None
    """(role, content) pairs."""
    params: dict[str, Any]
    """Fields of `SearchParams`; the engine's defaults stand for those that are missing."""
    seed: int | None
    request_id: str | None
    priority: int
    cache_salt: str
    tensors: list[Tensor] = []


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    """Give requests up; ids that are unknown or have ended are ignored. The client expects no answer."""

    ids: list[int]


class Stats(msgspec.Struct, tag="stats", array_like=True, frozen=True):
    """Ask for a `StatsReply` with the same `id`."""

    id: int


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True):
    """End the engine process. A running engine that was attached to only ends the connection."""


ToEngine = Start | Generate | Pool | Search | Cancel | Stats | Shutdown


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The model is loaded and requests are taken."""

    protocol_version: int
    model: str
    model_impl: str
    device: str
    dtype: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    process_id: int


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The engine cannot start or has ended; nothing more will come. `kind` is that of an `XLLMError`."""

    kind: str
    message: str


class Delta(msgspec.Struct, array_like=True, frozen=True):
    """New text and tokens of one sequence. `logprobs` holds (token id, logprob, [(token id, logprob), ...]) a token."""

    id: int
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[Any] | None
    finish_reason: str | None
    stop_reason: str | None
    """The stop string, or the stop token id in digits."""
    reasoning: str | None = None
    """New thought, in a chat with tools; `text` is then only what is said."""
    tool_calls_json: str | None = None
    """With the last delta of a sequence in a chat with tools: all its calls, a JSON array in OpenAI's shape."""


class Finished(msgspec.Struct, array_like=True, frozen=True):
    """A request has ended. `kind` and `message` say how it failed; both are None for success."""

    id: int
    kind: str | None
    message: str | None
    num_prompt_tokens: int
    num_cached_tokens: int


class Outputs(msgspec.Struct, tag="outputs", array_like=True, frozen=True):
    """What has come since the last message: the deltas first, then the ends."""

    deltas: list[Delta]
    finished: list[Finished]


class Vectors(msgspec.Struct, tag="vectors", array_like=True, frozen=True):
    """The end of a `Pool` request: rows of `num_dimensions` little-endian float32, or why there are none."""

    id: int
    kind: str | None
    message: str | None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_dimensions: int = 0
    values: bytes = b""


class Path(msgspec.Struct, array_like=True, frozen=True):
    """One path, and the items that its tokens stand for."""

    token_ids: list[int]
    logprobs: list[float]
    """Of each token."""
    score: float
    item_ids: list[int]
    document_ids: list[str]
    """One an item, or empty; so are `item_types`."""
    item_types: list[str]
    text: str


class Paths(msgspec.Struct, tag="paths", array_like=True, frozen=True):
    """The end of a `Search` request: its paths, best first, or why there are none."""

    id: int
    kind: str | None
    message: str | None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    catalogue_version: int = 0
    paths: list[Path] = []


class StatsReply(msgspec.Struct, tag="stats", array_like=True, frozen=True):
    """Gauges and counters as of the engine's latest step."""

    id: int
    stats: EngineStats


ToHost = Ready | Failed | Outputs | Vectors | Paths | StatsReply
