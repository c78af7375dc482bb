"""What the scheduler remembers of a request beside the request itself. Knows nothing of queues or blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xllm_framework.request import Request, Sequence
from xllm_framework.request.messages import WireLogprob
from xllm_scheduler.beam import BeamGroup


@dataclass(slots=True)
class RequestRecord:
    """One unfinished request.

    While `followers` is not empty, exactly one of the request's sequences, the leader, waits or runs, and its prompt
    is not computed yet. Once it is, the followers are queued and find the prompt's blocks in the prefix cache.
    """

    request: Request
    arrival: int
    """Number of requests that arrived before it."""
    followers: list[Sequence] = field(default_factory=list)
    is_held: bool = False
    """Whether its waiting sequences are kept apart, and not admitted."""
    num_cached_tokens: int = 0
    """Prompt tokens that its first sequence found in the prefix cache, at its first admission and after."""
    beams: BeamGroup | None = None
    """The beams of a beam search. Its followers never run: they only stand for its results."""
    prompt_logprobs: list[WireLogprob | None] = field(default_factory=list)
    """Collected over the chunks of the prompt; handed out with the first token."""
    pooled: npt.NDArray[np.float64] | None = None
    """The sum, so far, of what the prompt's chunks brought a pooling request."""

    def forget_prompt(self) -> None:
        """Drop what was collected of the prompt, which will be computed anew, or has no use any more."""
        self.prompt_logprobs.clear()
        self.pooled = None
