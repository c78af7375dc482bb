"""A user's call on the engine side: its sequences and how they are to be served. Knows nothing of text or callbacks."""

from __future__ import annotations

import numpy.typing as npt

from xllm_framework.multimodal.prompt_media import PromptMedia
from xllm_framework.request.pooling_params import PoolingParams
from xllm_framework.request.sampling_params import SamplingParams
from xllm_framework.request.sequence import Sequence
from xllm_framework.request.service_objectives import NO_OBJECTIVES, ServiceObjectives


class Request:
    """One inference request with `sampling.num_sequences` sequences over the same prompt.

    `arrival_time_s` and `deadline_s` are readings of the engine's clock (seconds, monotonic); `deadline_s` None means
    none. A smaller `priority` is served first. `cache_salt` separates prefix-cache entries: only requests with an equal
    salt share blocks. `objectives` are latencies to aim at, which never end a request. `first_token_time_s` is set with
    the first token of any of its sequences. With `pooling` nothing is generated: the prompt becomes a vector. `media`
    are the images and videos that place-holders of the prompt stand for; None for a text.
    """

    __slots__ = (
        "arrival_time_s",
        "cache_salt",
        "deadline_s",
        "first_scheduled_time_s",
        "first_token_time_s",
        "is_offline",
        "media",
        "objectives",
        "pooling",
        "priority",
        "request_id",
        "sampling",
        "seed",
        "sequences",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: npt.ArrayLike,
        sampling: SamplingParams,
        *,
        arrival_time_s: float,
        seed: int = 0,
        priority: int = 0,
        deadline_s: float | None = None,
        cache_salt: str = "",
        is_offline: bool = False,
        objectives: ServiceObjectives = NO_OBJECTIVES,
        pooling: PoolingParams | None = None,
        media: PromptMedia | None = None,
    ) -> None:
        self.request_id = request_id
        self.sampling = sampling
        self.seed = seed if sampling.seed is None else sampling.seed
        self.arrival_time_s = arrival_time_s
        self.first_scheduled_time_s: float | None = None
        self.first_token_time_s: float | None = None
        self.priority = priority
        self.deadline_s = deadline_s
        self.cache_salt = cache_salt
        self.is_offline = is_offline
        self.objectives = objectives
        self.pooling = pooling
        self.media = media
        reserve = min(sampling.max_tokens or 64, 4096)
        self.sequences = [
            Sequence(request_id, index, prompt_token_ids, reserve, media) for index in range(sampling.num_sequences)
        ]

    @property
    def is_finished(self) -> bool:
        """Whether all of its sequences have ended."""
        return all(sequence.is_finished for sequence in self.sequences)

    def __repr__(self) -> str:
        return f"Request({self.request_id}, {self.sequences})"
