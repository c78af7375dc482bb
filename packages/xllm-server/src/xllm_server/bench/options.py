"""What a benchmark run asks for. Knows nothing of how a command line is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of one run."""

    base_url: str = "http://127.0.0.1:8000"
    """Address of the server, with or without /v1."""
    model: str = ""
    """Model to ask for; empty takes the first that /v1/models lists."""
    endpoint: Literal["completions", "chat"] = "completions"
    """Which route to drive."""
    api_key: str = ""
    """Bearer token; empty takes $OPENAI_API_KEY, or none."""
    num_prompts: int = 64
    """Requests to send."""
    concurrency: int = 8
    """Requests that run at once at most."""
    request_rate: float = 0.0
    """Requests a second, with exponential gaps between them; 0 sends the next one as soon as one ends."""
    input_len: int = 128
    """Words a prompt; common words, each one token in the usual vocabularies. The report counts tokens by `usage`."""
    output_len: int = 128
    """Tokens to generate."""
    shared_prefix_len: int = 0
    """Words that all prompts begin with, counted in `input_len`."""
    temperature: float = 0.0
    """Sampling temperature."""
    ignore_eos: bool = True
    """Ask the server not to stop at the end of text, so that all answers are equally long."""
    seed: int = 0
    """Seed of the prompts and of the arrival times."""
    warmup: int = 0
    """Requests sent before the clock starts, with prompts of their own."""
    timeout_s: float = 600.0
    """Seconds that one request may take."""
    extra_body: str = ""
    """JSON object merged into every request."""
    output: str = ""
    """File for the report as JSON; - prints it in place of the table."""
