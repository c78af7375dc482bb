"""Token counts of an answer. Knows nothing of how they are gathered."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int
    """Tokens that the prefix cache held."""


class CompletionTokensDetails(msgspec.Struct):
    """What generated tokens were for."""

    reasoning_tokens: int
    """Tokens that were reasoning, with their tags as far as the parser knows them."""


class Usage(msgspec.Struct):
    """Token counts; a prompt with n answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET
    """Only where a reasoning parser can tell."""

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
        """Return the counts with their sum."""
        details = PromptTokensDetails(cached_tokens)
        return cls(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)
