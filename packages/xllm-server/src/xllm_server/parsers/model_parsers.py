"""The parsers of the model that is served: by name, or by its chat template. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.config import ModelConfig
from xllm_server.parsers.reasoning.interface import ReasoningParserFactory
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.registry import AUTO, OFF
from xllm_server.parsers.selection import reasoning_parser_of, tool_call_parser_of
from xllm_server.parsers.tool_call.interface import ToolCallParserFactory
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS


@dataclass(frozen=True, slots=True)
class ModelParsers:
    """Both kinds of parser; None where there is none."""

    tool_call: ToolCallParserFactory | None = None
    reasoning: ReasoningParserFactory | None = None

    @classmethod
    def choose(cls, config: ModelConfig, model_type: str, template: str) -> ModelParsers:
        """Return the parsers of a model; `template` is the source of its chat template, perhaps empty.

        Raises:
            InvalidConfig: an option names no parser.
        """
        tool_call = _chosen(config.tool_call_parser, tool_call_parser_of(model_type, template))
        reasoning = _chosen(config.reasoning_parser, reasoning_parser_of(model_type, template))
        return cls(
            TOOL_CALL_PARSERS.load(tool_call) if tool_call else None,
            REASONING_PARSERS.load(reasoning) if reasoning else None,
        )


def check_parser_names(config: ModelConfig) -> None:
    """Check the names of parsers, long before a model is loaded.

    Raises:
        InvalidConfig: an option names no parser; lists those there are.
    """
    for name, table in ((config.tool_call_parser, TOOL_CALL_PARSERS), (config.reasoning_parser, REASONING_PARSERS)):
        if _chosen(name, ""):
            table.resolve(name)


def _chosen(name: str, automatic: str) -> str:
    plain = name.strip().lower()
    if plain in OFF:
        return ""
    return automatic if plain == AUTO else name
