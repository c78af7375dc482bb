"""A step's time as a sum of few terms. Knows nothing of how the coefficients were found: `fit` does that."""

from __future__ import annotations

from pathlib import Path

import msgspec

from xllm_framework.errors import InvalidConfig
from xllm_scheduler.latency.shape import StepShape


class LatencyModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of a step; none is negative.

    With d tokens computed behind p others, a step takes `constant_us`, and in addition

        a prefill chunk   per_token_us * d + per_token_squared_us * d^2 + per_token_before_us * d * p + per_before_us * p
        a decode          per_decode_us * d + per_decode_before_us * d * p

    where d of a decode is 1, or more with speculative tokens. The defaults resemble a small model on one accelerator;
    they are made up, and serve only to compare.
    """

    constant_us: float = 4000.0
    per_token_us: float = 25.0
    per_token_squared_us: float = 0.01
    per_token_before_us: float = 0.02
    per_before_us: float = 0.0
    per_decode_us: float = 25.0
    per_decode_before_us: float = 0.02

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {value}")

    @classmethod
    def linear(cls, *, constant_us: float, per_token_us: float, per_kv_token_us: float) -> LatencyModel:
        """Return a model in which every token computed costs the same, and every KV token that attention reads."""
        return cls(
            constant_us=constant_us,
            per_token_us=per_token_us,
            per_token_squared_us=per_kv_token_us / 2,
            per_token_before_us=per_kv_token_us,
            per_decode_us=per_token_us,
            per_decode_before_us=per_kv_token_us,
        )

    @property
    def constant_s(self) -> float:
        """Seconds that any step takes, whatever it computes."""
        return 1e-6 * self.constant_us

    def prefill_s(self, num_tokens: int, num_before: int) -> float:
        """Return the seconds that a chunk of `num_tokens` behind `num_before` adds to a step."""
        per_token_us = (
            self.per_token_us + self.per_token_squared_us * num_tokens + self.per_token_before_us * num_before
        )
        return 1e-6 * (per_token_us * num_tokens + self.per_before_us * num_before)

    def decode_s(self, num_before: int, num_tokens: int = 1) -> float:
        """Return the seconds that a decode of `num_tokens` behind `num_before` adds to a step."""
        return 1e-6 * num_tokens * (self.per_decode_us + self.per_decode_before_us * num_before)

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds of a whole step; 0 if it computes nothing."""
        if not shape.chunks and not shape.decodes:
            return 0.0
        return (
            self.constant_s
            + sum(self.prefill_s(tokens, before) for tokens, before in shape.chunks)
            + sum(self.decode_s(before, tokens) for tokens, before in shape.decodes)
        )

    def longest_chunk(self, num_before: int, max_tokens: int, limit_s: float) -> int:
        """Return the most tokens, up to `max_tokens`, that add at most `limit_s`; 0 if none do. O(log max_tokens)."""
        if self.prefill_s(max_tokens, num_before) <= limit_s:
            return max_tokens
        fits, fails = 0, max_tokens
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.prefill_s(middle, num_before) <= limit_s:
                fits = middle
            else:
                fails = middle
        return fits


def load_latency_model(path: Path) -> LatencyModel:
    """Read a model that `save_latency_model` wrote.

    Raises:
        InvalidConfig: the file cannot be read or is no latency model; names the file and the field.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=LatencyModel)
    except OSError as error:
        raise InvalidConfig(f"The latency model {path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidConfig(f"The latency model {path} is not valid: {error}.") from error


def save_latency_model(model: LatencyModel, path: Path) -> None:
    """Write `model` as one JSON object of its coefficients."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=2) + b"\n")
