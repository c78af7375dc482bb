"""The states of a sequence and the reasons why one ends. Knows nothing of who changes them."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class SequenceStatus(IntEnum):
    """Where a sequence stands. WAITING -> PREFILL -> DECODE -> FINISHED; preemption goes back to WAITING."""

    WAITING = 0
    """Holds no blocks; nothing of it is computed, or what was is given up."""
    PREFILL = 1
    """Holds blocks; part of its tokens are computed, and the rest follow in chunks."""
    DECODE = 2
    """Holds blocks; every token but the newest is computed."""
    FINISHED = 3
    """Holds no blocks; `finish_reason` is set."""


class FinishReason(StrEnum):
    """Why a sequence ended. The values are the strings that OpenAI clients know, where one exists."""

    STOP = "stop"
    """An end-of-text token, a stop token id, or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the model's context is used up."""
    ABORT = "abort"
    """The client cancelled, or left."""
    ERROR = "error"
    """The sequence failed; the output's `error` says why."""
