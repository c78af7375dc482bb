"""Renders messages with a model's chat template. Knows nothing of tokens, of files or of HTTP.

Templates come from the model's files or from the operator, never from a request: they run in a sandbox, but their
authors decide what they cost. A request's part in that cost is bounded by the text it may produce and by time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jinja2

from xllm_framework.chat_template.environment import template_environment
from xllm_framework.chat_template.messages import normalise_messages
from xllm_framework.errors import InvalidRequest
from xllm_framework.tokenizer.tokenizer import without_lone_surrogates

MAX_RENDERED_CHARACTERS = 32 * 1024 * 1024
MAX_RENDER_SECONDS = 10.0
DEFAULT_NAME = "default"
TOOL_USE_NAME = "tool_use"
_CONTINUE_MARK = "XLLM-CONTINUE-FINAL-MESSAGE "
"""Put behind the final message to find its end in the prompt; the space shows whether the template trims."""
_OWN_NAMES = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "chat_template_kwargs", "template", "conversation", "tokenizer", "tokenize", "return_dict"),
    }
)


class ChatTemplate:
    """A model's chat template, compiled; `templates` is by name, with "default" and perhaps "tool_use".

    `special_tokens` are variables of the template: bos_token, eos_token and the like. Thread-safe.

    Raises:
        jinja2.TemplateSyntaxError: a template is no Jinja.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        environment = template_environment()
        self.source = "\n".join(templates.values())
        """The text of all templates, which shows the marks that the model writes."""
        self._templates = {name: environment.from_string(source) for name, source in templates.items()}
        self._developer_aware = {name for name, source in templates.items() if "developer" in source}
        self._special_tokens = dict(special_tokens)
        self._reserved_names = _OWN_NAMES | environment.globals.keys() | special_tokens.keys()

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        media_kinds: Collection[str] = (),
    ) -> str:
        """Return the prompt for `messages`, which are brought into shape first (see `messages.py`).

        `continue_final_message` leaves the last message open, so that the model goes on with it; there is no
        generation prompt then. `kwargs` are further variables for the template: plain values, never templates.
        Lone surrogates come out as U+FFFD. `media_kinds` are types of content parts that the template itself shows.

        Raises:
            InvalidRequest: a wrong message, or one that the template refuses, with the template's own words; a name
                in `kwargs` that is not free; a prompt that takes too long or gets too long.
        """
        variables = {**self._special_tokens, **self._checked(kwargs or {})}
        name = TOOL_USE_NAME if tools and TOOL_USE_NAME in self._templates else DEFAULT_NAME
        chat = normalise_messages(messages, knows_developer_role=name in self._developer_aware, media_kinds=media_kinds)
        final_text = chat[-1]["content"]
        if continue_final_message:
            if not isinstance(final_text, str):
                raise InvalidRequest("A final message with media cannot be continued.", param="continue_final_message")
            chat[-1]["content"] = final_text + _CONTINUE_MARK
        prompt = _render(
            self._templates[name],
            {
                **variables,
                "messages": chat,
                "tools": tools or None,
                "documents": variables.get("documents"),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
        )
        prompt = without_lone_surrogates(prompt)
        return _cut_at_mark(prompt, final_text) if continue_final_message else prompt

    def _checked(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in kwargs:
            if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
                raise InvalidRequest(f"{name!r} is no name for a template variable.", param="chat_template_kwargs")
            if name in self._reserved_names:
                raise InvalidRequest(
                    f"chat_template_kwargs may not set {name!r}: the server sets it, and templates come only from "
                    "the model or from the operator.",
                    param="chat_template_kwargs",
                )
        return kwargs


def _render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    try:
        return _join_bounded(template.generate(variables))
    except InvalidRequest:
        raise
    except jinja2.UndefinedError as error:
        what = f"The model's chat template misses a value in these messages: {error}."
        raise InvalidRequest(what, param="messages") from error
    except jinja2.TemplateError as error:
        what = str(error).strip() or "no reason given"
        raise InvalidRequest(f"The model's chat template refuses these messages: {what}", param="messages") from error
    except Exception as error:  # whatever a template's expressions raise concerns this request only
        what = f"The model's chat template cannot render these messages: {type(error).__name__}: {error}."
        raise InvalidRequest(what, param="messages") from error


def _join_bounded(pieces: Iterable[str]) -> str:
    deadline = time.monotonic() + MAX_RENDER_SECONDS
    parts: list[str] = []
    num_characters = 0
    for piece in pieces:
        parts.append(piece)
        num_characters += len(piece)
        if num_characters > MAX_RENDERED_CHARACTERS:
            raise InvalidRequest(
                f"The prompt made of these messages is longer than {MAX_RENDERED_CHARACTERS} characters.",
                param="messages",
            )
        if time.monotonic() > deadline:
            raise InvalidRequest(
                f"The chat template takes longer than {MAX_RENDER_SECONDS:g} s for these messages.", param="messages"
            )
    return "".join(parts)


def _cut_at_mark(prompt: str, final_text: str) -> str:
    """Return the prompt up to the end of the final message; if the template trims it, so does the cut."""
    position = prompt.rfind(_CONTINUE_MARK.rstrip())
    if position < 0 or final_text.strip() not in prompt:
        raise InvalidRequest(
            "continue_final_message cannot be used: the model's chat template does not keep the final message as it is.",
            param="continue_final_message",
        )
    if prompt.startswith(_CONTINUE_MARK, position):
        return prompt[:position]
    return prompt[:position].rstrip()
