"""Token counts of an answer. Knows nothing of how they are gathered."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int
    """Tokens that the prefix cache held."""


class Usage(msgspec.Struct):
    """Token counts; a prompt with n answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
        """Return the counts with their sum."""
        details = PromptTokensDetails(cached_tokens)
        return cls(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)
