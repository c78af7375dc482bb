"""Traces: which requests arrive when. Knows nothing of how they are served.

The JSON format is one object; all times in seconds, all lengths in tokens:

    {
      "requests": [
        {
          "arrival_s": 0.25,        when it arrives, from 0
          "prompt_tokens": 512,     at least 1
          "output_tokens": 64,      exactly so many are generated, at least 1
          "prefix_group": "doc",    optional: requests of one group begin with the same tokens ...
          "prefix_tokens": 256,     ... so many of them, at most `prompt_tokens`
          "priority": 0,            optional: smaller is served first
          "n": 1,                   optional: sequences to generate
          "deadline_s": 2.0         optional: dropped if nothing of it has run so long after its arrival
        }
      ]
    }
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidConfig
from xllm_framework.request import Request, SamplingParams

_VOCABULARY_SIZE = 50_000


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of a trace; the module's docstring explains the fields."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_group: str = ""
    prefix_tokens: int = 0
    priority: int = 0
    n: int = 1
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1 or self.n < 1:
            raise ValueError("prompt_tokens, output_tokens and n must be 1 or more")
        if self.arrival_s < 0:
            raise ValueError(f"arrival_s must be 0 or more, not {self.arrival_s}")
        if not 0 <= self.prefix_tokens <= self.prompt_tokens:
            raise ValueError(f"prefix_tokens must be from 0 to prompt_tokens, not {self.prefix_tokens}")

    def to_request(self, number: int) -> Request:
        """Return the request, with tokens drawn from its number and its prefix group."""
        return Request(
            f"request-{number}",
            np.concatenate([_tokens(self.prefix_group, self.prefix_tokens), self._own_tokens(number)]),
            SamplingParams(max_tokens=self.output_tokens, ignore_eos=True, n=self.n),
            arrival_time_s=self.arrival_s,
            priority=self.priority,
            deadline_s=None if self.deadline_s is None else self.arrival_s + self.deadline_s,
        )

    def _own_tokens(self, number: int) -> npt.NDArray[np.int32]:
        return _tokens(f"request {number}", self.prompt_tokens - self.prefix_tokens)


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests, in any order."""

    requests: list[TraceRequest]


def load_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InvalidConfig: the file cannot be read or is no trace; names the file and the field.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trace)
    except OSError as error:
        raise InvalidConfig(f"The trace {path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidConfig(f"The trace {path} is not valid: {error}.") from error


def _tokens(name: str, count: int) -> npt.NDArray[np.int32]:
    seed = int.from_bytes(name.encode("utf-8", "surrogatepass"), "little")
    return np.random.default_rng(seed).integers(0, _VOCABULARY_SIZE, count, dtype=np.int32)


TINY = Trace(
    [
        TraceRequest(
            arrival_s=0.03 * number,
            prompt_tokens=96 + 53 * (number * number % 11) + (1500 if number % 8 == 5 else 0),
            output_tokens=24 + 17 * (number % 5),
            prefix_group="system prompt" if number % 2 else "",
            prefix_tokens=80 if number % 2 else 0,
        )
        for number in range(40)
    ]
)
"""Forty requests in 1.2 s: short prompts, every other one with a shared beginning, and five long ones."""
