"""Traces: which requests arrive when. Knows nothing of how they are served.

The JSON format is one object; all times in seconds, all lengths in tokens:

    {
      "requests": [
        {
          "arrival_s": 0.25,        when it arrives, from 0
          "prompt_tokens": 512,     at least 1
          "output_tokens": 64,      exactly so many are generated, at least 1
          "system_tokens": 100,     optional: every prompt of the trace begins with the same tokens, so many of them
          "prefix_group": "doc",    optional: then come tokens that are the same for all requests of one group ...
          "prefix_tokens": 256,     ... so many of them; with `system_tokens` at most `prompt_tokens`
          "priority": 0,            optional: smaller is served first
          "n": 1,                   optional: sequences to generate
          "deadline_s": 2.0,        optional: dropped if nothing of it has run so long after its arrival
          "offline": false,         optional: nobody is waiting for it
          "ttft_slo_ms": 500,       optional: objectives, which never end a request: time to first token,
          "tpot_slo_ms": 50,        mean time between tokens,
          "ttlt_slo_ms": 0          time to last token; 0 is none
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
from xllm_framework.request import Request, SamplingParams, ServiceObjectives

_VOCABULARY_SIZE = 50_000


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of a trace; the module's docstring explains the fields."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    system_tokens: int = 0
    prefix_group: str = ""
    prefix_tokens: int = 0
    priority: int = 0
    n: int = 1
    deadline_s: float | None = None
    offline: bool = False
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    ttlt_slo_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1 or self.n < 1:
            raise ValueError("prompt_tokens, output_tokens and n must be 1 or more")
        if self.arrival_s < 0:
            raise ValueError(f"arrival_s must be 0 or more, not {self.arrival_s}")
        if min(self.prefix_tokens, self.system_tokens) < 0:
            raise ValueError("prefix_tokens and system_tokens must be 0 or more")
        if self.system_tokens + self.prefix_tokens > self.prompt_tokens:
            raise ValueError(f"prefix_tokens must be from 0 to prompt_tokens - system_tokens, not {self.prefix_tokens}")
        if min(self.ttft_slo_ms, self.tpot_slo_ms, self.ttlt_slo_ms) < 0:
            raise ValueError("ttft_slo_ms, tpot_slo_ms and ttlt_slo_ms must be 0 or more")

    def to_request(self, number: int) -> Request:
        """Return the request, with tokens drawn from its number and its prefix group."""
        prompt = [
            _tokens("system", self.system_tokens),
            _tokens(self.prefix_group, self.prefix_tokens),
            _tokens(f"request {number}", self.prompt_tokens - self.system_tokens - self.prefix_tokens),
        ]
        return Request(
            f"request-{number}",
            np.concatenate(prompt),
            SamplingParams(max_tokens=self.output_tokens, ignore_eos=True, n=self.n),
            arrival_time_s=self.arrival_s,
            priority=self.priority,
            deadline_s=None if self.deadline_s is None else self.arrival_s + self.deadline_s,
            is_offline=self.offline,
            objectives=ServiceObjectives(self.ttft_slo_ms, self.tpot_slo_ms, self.ttlt_slo_ms),
        )


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


def save_trace(trace: Trace, path: Path) -> None:
    """Write `trace` so that `load_trace` reads it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(trace), indent=1) + b"\n")


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
