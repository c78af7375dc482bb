"""How many prompt tokens a step takes on, learnt from how long steps took. Knows nothing of queues, blocks or devices.

A request that comes while a step is computed waits for its end, so that the length of steps bounds the time to first token,
and the interval between tokens. How many tokens fill a given time differs by machine, model and context, and changes while
a prompt grows; the step before is a good guess of the next, and needs no model of the device.

Short steps cost prompts some of their speed, because each reads all weights. So they are as short as that only while somebody
decodes or has come lately; else they take twice as long, which one who comes then waits for once.
"""

from __future__ import annotations

from math import inf

from xllm_scheduler.budget import UNLIMITED

FIRST_TOKENS = 128
"""Prompt tokens of the first step, before anything was measured."""
MIN_TOKENS = 16
"""However slow, a step takes on so many: below, passes over the weights cost more than they give."""
CALM_AFTER_S = 2.0
"""Nobody has come for so long, and nobody decodes: then a step may take `CALM_FACTOR` times its time."""
CALM_FACTOR = 2
_FULL_SHARE = 0.75
"""A step that used less than this share of its tokens says nothing about how long a full one takes."""
_MOST_CHANGE = 2.0


class StepPace:
    """Prompt tokens a step, so that a step takes `limit_s` seconds, or twice that in calm times; 0 does not limit anything.

    `first_tokens` are those of the first step, where something is known about the device.
    """

    def __init__(self, limit_s: float, max_tokens: int, first_tokens: int = FIRST_TOKENS) -> None:
        self.is_kept = limit_s > 0
        self._limit_s = limit_s
        self._max_tokens = max_tokens
        self._fitting = max(min(first_tokens, max_tokens), min(MIN_TOKENS, max_tokens))
        """Tokens that fill `limit_s`."""
        self._last_arrival_s = -inf
        self.num_tokens = self._fitting if self.is_kept else UNLIMITED
        """What the next step takes on."""

    def note_arrival(self, time_s: float) -> None:
        """Take note of a request that somebody waits for."""
        self._last_arrival_s = time_s

    def is_calm(self, now_s: float) -> bool:
        """Whether nobody has come lately."""
        return now_s - self._last_arrival_s > CALM_AFTER_S

    def plan(self, *, may_be_long: bool) -> int:
        """Return what the next step takes on; `may_be_long` if nobody decodes and `is_calm`."""
        if self.is_kept:
            self.num_tokens = min(self._fitting * (CALM_FACTOR if may_be_long else 1), self._max_tokens)
        return self.num_tokens

    def observe(self, num_prompt_tokens: int, seconds: float) -> float:
        """Learn from a step that took `seconds` and computed so many prompt tokens, beside whatever else.

        Returns what one of them took, or 0 where the step says nothing about it.
        """
        if seconds <= 0 or num_prompt_tokens < MIN_TOKENS:
            return 0.0
        if self.is_kept and num_prompt_tokens >= _FULL_SHARE * self.num_tokens:
            fitting = num_prompt_tokens * self._limit_s / seconds
            lowest, highest = self._fitting / _MOST_CHANGE, self._fitting * _MOST_CHANGE
            fitting = int(min(max(fitting, lowest), highest))
            self._fitting = min(max(fitting, MIN_TOKENS), self._max_tokens)
            self.num_tokens = self._fitting
        return seconds / num_prompt_tokens
