"""What a chat call brings, as plain data. Knows nothing of HTTP or of how it becomes a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A conversation for the model's chat template."""

    messages: list[dict[str, Any]]
    """Each with `role` and `content`, as the template expects them."""
    tools: list[dict[str, Any]] | None = None
    """Function descriptions in OpenAI's shape."""
    add_generation_prompt: bool = True
    """End the prompt where the assistant's answer begins."""
    continue_final_message: bool = False
    """End the prompt inside the last message, so that the answer continues it."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Variables that the template knows by name, such as enable_thinking."""
