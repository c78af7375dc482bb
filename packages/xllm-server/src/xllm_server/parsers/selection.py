"""Finds the parsers that fit a model. Knows no format, only the marks that a chat template shows.

The template goes before the model's type: it is what taught the model its marks, and fine-tunes bring their own.
"""

from __future__ import annotations

_TOOL_CALL_MARKS = (
    (("<|tool_calls_section_begin|>",), "kimi-k2"),
    (("｜DSML｜",), "deepseek-v32"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek-v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek-v31"),
    (("<|channel|>", "functions."), "harmony"),
    (("<function=", "<parameter="), "qwen3-coder"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("[func_name1(",), "pythonic"),
    (("<|python_tag|>",), "llama3-json"),
    (('{"name": function name, "parameters"',), "llama3-json"),
)
"""(what a template must show, parser); the first that fits is taken."""

_TOOL_CALL_TYPES = {
    "qwen2": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
    "qwen3_coder": "qwen3-coder",
    "qwen3_5": "qwen3-coder",
    "qwen3_5_moe": "qwen3-coder",
    "kimi_k2": "kimi-k2",
    "kimi_k25": "kimi-k2",
    "deepseek_v3": "deepseek-v3",
    "deepseek_v32": "deepseek-v32",
    "deepseek_v4": "deepseek-v32",
    "glm4_moe": "glm45",
    "glm_moe_dsa": "glm45",
    "gpt_oss": "harmony",
}
"""Model type -> parser, for models without a template."""

_REASONING_MARKS = (
    (("<|channel|>", "analysis"), "harmony"),
    (("◁think▷",), "kimi"),
    (("[THINK]",), "mistral"),
    (("</think>", "<|tool_calls_section_begin|>"), "kimi-k2"),
    (("</think>",), "think"),
    (("<think>",), "think"),
)

_REASONING_TYPES = {
    "gpt_oss": "harmony",
    "deepseek_v32": "think",
    "deepseek_v4": "think",
    "glm4_moe": "think",
    "glm_moe_dsa": "think",
    "kimi_k25": "kimi-k2",
    "qwen3": "think",
    "qwen3_moe": "think",
}


def tool_call_parser_of(model_type: str, template: str) -> str:
    """Return the name of the tool-call parser for a model, or nothing; `template` is its chat template's source."""
    return _first_fit(_TOOL_CALL_MARKS, template) if template else _TOOL_CALL_TYPES.get(model_type, "")


def reasoning_parser_of(model_type: str, template: str) -> str:
    """Return the name of the reasoning parser for a model, or nothing."""
    return _first_fit(_REASONING_MARKS, template) if template else _REASONING_TYPES.get(model_type, "")


def _first_fit(table: tuple[tuple[tuple[str, ...], str], ...], template: str) -> str:
    return next((name for marks, name in table if all(mark in template for mark in marks)), "")
