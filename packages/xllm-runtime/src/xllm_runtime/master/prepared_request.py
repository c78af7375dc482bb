"""A request that passed every check of the front side and only waits to be submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from xllm_framework.request import SamplingParams, ServiceObjectives
from xllm_framework.request.messages import AddRequest


class RequestOptions(TypedDict, total=False):
    """Keywords of `LLMMaster.prepare_completion` and `prepare_chat` beside prompt and sampling; all may be left out."""

    request_id: str | None
    """The caller's own id; it may repeat. None lets the master's stand in."""
    priority: int
    """Smaller is sooner, where the policy looks at it."""
    deadline_s: float | None
    """Reading of the monotonic clock by which it must have started; None means none."""
    cache_salt: str
    """Only requests with an equal salt share cached prefixes."""
    is_offline: bool
    """Whether it may wait for others that somebody is watching."""
    objectives: ServiceObjectives
    """Latencies to aim at, where the strategy looks at them."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The result of `LLMMaster.prepare_completion` and `prepare_chat`; can be submitted once."""

    message: AddRequest
    """What the engine side gets."""
    prompt: str | None
    """The prompt as text (after the chat template), None when token ids were given."""
    client_request_id: str | None = None
    """The id that the caller gave; it may repeat, and is what `RequestOutput.request_id` shows."""
    is_continuation: bool = False
    """Whether the output's text goes on from the prompt's, so that a first space of it counts."""

    @property
    def request_id(self) -> str:
        """The master's own id of the request, unique: what `LLMMaster.cancel` takes."""
        return self.message.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as token ids."""
        return self.message.prompt_token_ids

    @property
    def sampling(self) -> SamplingParams:
        """How it samples and when it stops."""
        return self.message.sampling
