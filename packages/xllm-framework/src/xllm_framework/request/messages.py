"""What the front side and the engine side say to each other. Plain data, msgpack on the wire, never pickle.

Knows nothing of how the messages travel: an in-process queue hands the objects over as they are, a socket carries bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm_framework.multimodal.prompt_media import PromptMedia
from xllm_framework.request.image_messages import AddImages, ImageUpdate
from xllm_framework.request.pooling_params import PoolingParams
from xllm_framework.request.rec_messages import AddSearch, CatalogueChanged, ChangeCatalogue, FoundPaths
from xllm_framework.request.sampling_params import SamplingParams
from xllm_framework.request.service_objectives import NO_OBJECTIVES, ServiceObjectives

PauseMode = Literal["keep", "abort", "wait"]
"""What becomes of the work at hand: computed anew after the pause, ended, or finished first."""
PauseState = Literal["running", "pausing", "paused"]


class AddRequest(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """Start a request. Checked by the front side; the engine side trusts lengths and token ids."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_time_s: float
    seed: int = 0
    priority: int = 0
    deadline_s: float | None = None
    cache_salt: str = ""
    is_offline: bool = False
    objectives: ServiceObjectives = NO_OBJECTIVES
    pooling: PoolingParams | None = None
    """Return a vector of the prompt, and generate nothing."""
    media: PromptMedia | None = None
    """Images and videos in the prompt, which has place-holders for them."""


class AbortRequests(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """Stop these requests, or single sequences of them as (request id, index); unknown ones are ignored.

    Their blocks are free one step later.
    """

    request_ids: list[str | tuple[str, int]]


class Pause(msgspec.Struct, tag="pause", array_like=True, frozen=True):
    """Stop planning steps; `EngineStats.pause_state` says when that has come into force."""

    mode: PauseMode


class Resume(msgspec.Struct, tag="resume", array_like=True, frozen=True):
    """Plan steps again."""


class StartProfile(msgspec.Struct, tag="start_profile", array_like=True, frozen=True):
    """Begin to record what the loop does."""


class StopProfile(msgspec.Struct, tag="stop_profile", array_like=True, frozen=True):
    """End the recording and write it."""


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True):
    """End the loop after the step in flight."""


ToEngine = (
    AddRequest
    | AbortRequests
    | Pause
    | Resume
    | StartProfile
    | StopProfile
    | Shutdown
    | AddSearch
    | ChangeCatalogue
    | AddImages
)


class WireLogprob(msgspec.Struct, array_like=True, frozen=True):
    """`TokenLogprob` on the wire: the chosen token, then the alternatives, best first."""

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


class SequenceDelta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """New tokens of one sequence after a step; `finish_reason` (a `FinishReason` value) is set on the last one.

    Not watched by the garbage collector, as it can be part of no cycle: there is one for each token.
    """

    request_id: str
    index: int
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    logprobs: list[WireLogprob] | None = None
    prompt_logprobs: list[WireLogprob | None] | None = None
    num_cached_tokens: int = 0
    first_scheduled_time_s: float | None = None
    error: str | None = None
    error_kind: str | None = None
    pooled: bytes | None = None
    """The vector of a pooling request, little-endian float32, with its last delta."""


class ProfileState(msgspec.Struct, array_like=True, frozen=True):
    """What became of the latest `StartProfile` or `StopProfile`."""

    number: int = 0
    """How many of them there were."""
    is_running: bool = False
    kind: str = ""
    """torch, or python where the engine has no torch."""
    path: str = ""
    """The file that was written."""
    error: str = ""
    """Why nothing was begun or written; a sentence."""


_NO_PROFILE = ProfileState()


class EngineStats(msgspec.Struct, array_like=True):
    """Gauges of the moment and counters since the start (never decreasing)."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    """Blocks of the pool, without the padding block."""
    num_free_blocks: int = 0
    """Blocks that hold nothing."""
    num_cached_blocks: int = 0
    """Blocks that only the prefix cache holds; they can be taken."""
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int = 0
    """Prompt tokens found there."""
    num_encoded_media: int = 0
    """Images and videos that went through a vision tower."""
    num_cached_media: int = 0
    """Images and videos whose embeddings a step found in the encoder cache."""
    step_time_s: float = 0.0
    """Time spent in steps, in all."""
    pause_state: PauseState = "running"
    profile: ProfileState = _NO_PROFILE


class StepOutputs(msgspec.Struct, tag="outputs", array_like=True, frozen=True):
    """What one step brought."""

    deltas: list[SequenceDelta]
    stats: EngineStats


class EngineReady(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The engine side has loaded the model and takes requests."""

    max_model_len: int
    """Tokens of prompt and output together that one sequence can hold: model, option and pool considered."""
    num_blocks: int
    block_size: int
    vocab_size: int
    model_impl: str
    device: str
    dtype: str


class Heartbeat(msgspec.Struct, tag="heartbeat", array_like=True, frozen=True):
    """The engine side is alive; sent about once a second, from a thread of its own."""

    step_age_s: float
    """How long the step under way has taken so far; 0 between steps."""


class EngineFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The engine side cannot start, or its loop has ended by an error: nothing more will come."""

    message: str
    kind: str


class SearchOutputs(msgspec.Struct, tag="search_outputs", array_like=True, frozen=True):
    """Searches that have ended."""

    results: list[FoundPaths]
    stats: EngineStats


class ImageUpdates(msgspec.Struct, tag="image_updates", array_like=True, frozen=True):
    """What one step brought to requests for images."""

    updates: list[ImageUpdate]
    stats: EngineStats


FromEngine = StepOutputs | EngineReady | Heartbeat | EngineFailed | SearchOutputs | CatalogueChanged | ImageUpdates
