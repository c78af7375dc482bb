"""How one request samples and when it stops. Knows nothing of tensors or of the model, except by `check_vocabulary`."""

from __future__ import annotations

import math

import msgspec

from xllm_framework.constraint import Constraint
from xllm_framework.errors import InvalidRequest

MIN_TEMPERATURE = 1e-2
"""Temperatures between 0 and this are raised to it: smaller ones overflow float32 logits and mean greedy anyway."""
MIN_REPETITION_PENALTY = 1e-2
"""Smaller ones overflow float32 logits."""
MAX_N = 128
MAX_BEAM_WIDTH = 512
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 1024
MAX_LOGPROBS = 128
MAX_LOGIT_BIAS = 1024


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and stopping options of one request. Construct it with keywords; every value is checked at once.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """

    max_tokens: int | None = None
    """Tokens to generate at most; None means as many as the context holds. 0 only computes the prompt."""
    min_tokens: int = 0
    """End-of-text and stop token ids are not sampled before this many tokens."""
    temperature: float = 1.0
    """0 is greedy; otherwise logits are divided by it before the filters."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probabilities sum to at least this (nucleus sampling, arXiv 1904.09751)."""
    top_k: int = -1
    """Keep the k most probable tokens; -1 or 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most probable token's probability (arXiv 2407.01082)."""
    seed: int | None = None
    """Same seed, prompt and options give the same tokens, whoever shares the batch. None draws a fresh one."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the output already holds."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that the output holds the token."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (arXiv 1909.05858)."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these token ids; -100 in effect bans and 100 in effect forces."""
    logprobs: int | None = None
    """None returns none; k returns the sampled token's log-probability and those of the k most probable tokens."""
    prompt_logprobs: int | None = None
    """The same for the prompt's own tokens (echo)."""
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these strings, which is not part of the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends at any of these tokens, also under `ignore_eos`."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended the text."""
    ignore_eos: bool = False
    """The model's own end tokens (also those of its generation config) do not stop."""
    skip_special_tokens: bool = True
    """Special tokens are left out of the text."""
    constraint: Constraint | None = None
    """What the text must look like; it ends with `stop` once it is whole and nothing may follow."""
    n: int = 1
    """How many sequences to return for the prompt."""
    best_of: int | None = None
    """Generate this many and return the `n` with the largest mean log-probability a token, best first; they all come with
    the last output, also in a stream. None generates `n`."""
    beam_width: int = 1
    """More than 1 searches for the most probable answers (beam search) and returns the `n` best, best first, with the last
    output. Temperature, filters and seed have no effect then."""
    length_penalty: float = 0.0
    """In a beam search, answers are ranked by their log-probability divided by (tokens ** length_penalty)."""

    def __post_init__(self) -> None:
        self._check_range("temperature", self.temperature, 0.0, 2.0)
        self._check_range("top_p", self.top_p, 0.0, 1.0, exclusive_low=True)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        self._check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_range("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 2.0)
        if self.top_k < -1:
            raise InvalidRequest(f"top_k must be -1 (off), 0 (off) or positive, not {self.top_k}.", "top_k")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequest(f"max_tokens must be 0 or more, not {self.max_tokens}.", "max_tokens")
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise InvalidRequest(f"min_tokens must be from 0 to max_tokens, not {self.min_tokens}.", "min_tokens")
        if not 1 <= self.n <= MAX_N:
            raise InvalidRequest(f"n must be from 1 to {MAX_N}, not {self.n}.", "n")
        if self.best_of is not None and not self.n <= self.best_of <= MAX_N:
            raise InvalidRequest(f"best_of must be from n to {MAX_N}, not {self.best_of}.", "best_of")
        self._check_beams()
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InvalidRequest("seed must fit in 64 bits.", "seed")
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                raise InvalidRequest(f"{name} must be from 0 to {MAX_LOGPROBS}, not {value}.", name)
        self._check_stop()
        self._check_logit_bias()

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def num_sequences(self) -> int:
        """How many sequences the engine side reports."""
        return self.n if self.best_of is None else self.best_of

    @property
    def is_selecting(self) -> bool:
        """Whether some of the sequences are generated only to be compared."""
        return self.num_sequences > self.n

    @property
    def num_logprobs(self) -> int:
        """Alternatives that a step must report beside each token's log-probability; -1 if not even that."""
        if self.logprobs is not None:
            return self.logprobs
        return 0 if self.is_selecting else -1

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the model's vocabulary of `vocab_size` tokens.

        Raises:
            InvalidRequest: an id of `logit_bias` or `stop_token_ids` is not below `vocab_size`.
        """
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise InvalidRequest(
                        f"{name} holds token id {token_id}, but ids go from 0 to {vocab_size - 1}.", name
                    )

    @staticmethod
    def _check_range(name: str, value: float, low: float, high: float, *, exclusive_low: bool = False) -> None:
        is_inside = math.isfinite(value) and low <= value <= high and not (exclusive_low and value == low)
        if not is_inside:
            bounds = f"above {low:g} and at most {high:g}" if exclusive_low else f"from {low:g} to {high:g}"
            raise InvalidRequest(f"{name} must be {bounds}, not {value}.", name)

    def _check_beams(self) -> None:
        if not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            raise InvalidRequest(f"beam_width must be from 1 to {MAX_BEAM_WIDTH}, not {self.beam_width}.", "beam_width")
        self._check_range("length_penalty", self.length_penalty, -10.0, 10.0)
        if self.beam_width == 1:
            return
        if self.n > self.beam_width:
            raise InvalidRequest(f"n must be from 1 to beam_width {self.beam_width}, not {self.n}.", "n")
        unsupported = {
            "best_of": self.best_of is not None,
            "stop": bool(self.stop),
            "constraint": self.constraint is not None,
            "logit_bias": bool(self.logit_bias),
            "presence_penalty": self.presence_penalty != 0.0,
            "frequency_penalty": self.frequency_penalty != 0.0,
            "repetition_penalty": self.repetition_penalty != 1.0,
            "max_tokens": self.max_tokens == 0,
        }
        for name, is_given in unsupported.items():
            if is_given:
                raise InvalidRequest(f"{name} cannot be used as it is together with beam_width.", name)

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(self.stop)}.", "stop")
        if any(not text for text in self.stop):
            raise InvalidRequest("stop must not hold an empty string.", "stop")
        if any(len(text) > MAX_STOP_STRING_LENGTH for text in self.stop):
            raise InvalidRequest(f"a stop string has at most {MAX_STOP_STRING_LENGTH} characters.", "stop")

    def _check_logit_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(f"logit_bias takes at most {MAX_LOGIT_BIAS} entries.", "logit_bias")
        for token_id, bias in self.logit_bias.items():
            if token_id < 0:
                raise InvalidRequest(f"logit_bias holds the negative token id {token_id}.", "logit_bias")
            if not (math.isfinite(bias) and -100 <= bias <= 100):
                raise InvalidRequest(
                    f"logit_bias of token {token_id} must be from -100 to 100, not {bias}.", "logit_bias"
                )
