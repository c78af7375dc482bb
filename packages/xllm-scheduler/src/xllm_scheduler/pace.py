"""How many prompt tokens a step takes on, learnt from how long steps took. Knows nothing of queues, blocks or devices.

A request that comes while a step is computed waits for its end, so that the length of steps bounds the time to first token,
and the interval between tokens. How many tokens fill a given time differs by machine, model and context, and changes while
a prompt grows; the step before is a good guess of the next, and needs no model of the device.
"""

from __future__ import annotations

from xllm_scheduler.budget import UNLIMITED

FIRST_TOKENS = 128
"""Prompt tokens of the first step, before anything was measured."""
MIN_TOKENS = 16
"""However slow, a step takes on so many: below, passes over the weights cost more than they give."""
_FULL_SHARE = 0.75
"""A step that used less than this share of its tokens says nothing about how long a full one takes."""
_MOST_CHANGE = 2.0


class StepPace:
    """Prompt tokens a step, so that a step takes `limit_s` seconds; 0 does not limit anything."""

    def __init__(self, limit_s: float, max_tokens: int) -> None:
        self.is_kept = limit_s > 0
        self._limit_s = limit_s
        self._max_tokens = max_tokens
        self.num_tokens = min(FIRST_TOKENS, max_tokens) if self.is_kept else UNLIMITED
        """What the next step takes on."""

    def observe(self, num_prompt_tokens: int, seconds: float) -> float:
        """Learn from a step that took `seconds` and computed so many prompt tokens, beside whatever else.

        Returns what one of them took, or 0 where the step says nothing about it.
        """
        if seconds <= 0 or num_prompt_tokens < MIN_TOKENS:
            return 0.0
        if self.is_kept and num_prompt_tokens >= _FULL_SHARE * self.num_tokens:
            change = min(max(self._limit_s / seconds, 1 / _MOST_CHANGE), _MOST_CHANGE)
            self.num_tokens = min(max(int(num_prompt_tokens * change), MIN_TOKENS), self._max_tokens)
        return seconds / num_prompt_tokens
