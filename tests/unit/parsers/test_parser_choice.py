"""Which parser a model gets: names, aliases, and what chat templates show."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xllm_framework.config import ModelConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_server.launch import EXIT_USAGE, launch
from xllm_server.parsers import selection
from xllm_server.parsers.model_parsers import ModelParsers, check_parser_names
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

REFERENCE_TOOL_NAMES = (
    "qwen25 qwen2 qwen3 qwen3_coder qwen35 kimi_k2 deepseekv3 deepseekv32 deepseekv4 glm45 glm47 glm5"
)
OTHER_TOOL_NAMES = "hermes llama3_json llama4_pythonic pythonic mistral deepseek_v3 deepseek_v31 deepseek_v32 openai"
REFERENCE_REASONING_NAMES = (
    "deepseek-r1 deepseek-v3 deepseek-v4 glm45 glm47 glm5 kimi kimi_k25 qwen3 qwen35 "
    "qwen3-thinking qwen35-thinking step3"
)


@pytest.mark.parametrize("name", f"{REFERENCE_TOOL_NAMES} {OTHER_TOOL_NAMES}".split())
def test_tool_call_parsers_have_the_names_that_others_use(name: str) -> None:
    assert TOOL_CALL_PARSERS.load(name) is TOOL_CALL_PARSERS.load(f" {name.upper()}")


@pytest.mark.parametrize("name", f"{REFERENCE_REASONING_NAMES} deepseek_r1 mistral openai_gptoss".split())
def test_reasoning_parsers_have_the_names_that_others_use(name: str) -> None:
    assert REASONING_PARSERS.load(name) is REASONING_PARSERS.load(name.upper())


@pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_name_is_refused_with_the_names_there_are(option: str) -> None:
    with pytest.raises(InvalidConfig, match=r"parser 'hermse'; it has auto, none, .*harmony.*kimi-k2"):
        check_parser_names(ModelConfig(**{option: "hermse"}))
    with pytest.raises(InvalidConfig):
        ModelParsers.choose(ModelConfig(**{option: "hermse"}), "", "")


def test_a_server_with_an_unknown_parser_ends_before_it_loads_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    config = XLLMConfig(model=ModelConfig(model="/no/such/model", reasoning_parser="deepthink"))
    assert launch(config) == EXIT_USAGE
    assert "--reasoning-parser has no parser 'deepthink'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "none", "None", "auto", " Auto "])
def test_names_that_choose_no_parser_are_fine(name: str) -> None:
    config = ModelConfig(tool_call_parser=name, reasoning_parser=name)
    check_parser_names(config)
    assert ModelParsers.choose(config, "", "") == ModelParsers()


@pytest.mark.parametrize(
    ("template", "tool_call", "reasoning"),
    [
        ("{{ '<tool_call>\\n{\"name\": ' }}", "hermes", ""),
        ("<tool_call>{name} ... </think>", "hermes", "think"),
        ("<tool_call>\n<function=example>\n<parameter=x>", "qwen3-coder", ""),
        ("<tool_call>{{ name }}<arg_key>{{ key }}</arg_key> <think></think>", "glm45", "think"),
        ("<|python_tag|>", "llama3-json", ""),
        ("[func_name1(params_name1=params_value1)]", "pythonic", ""),
        ("[TOOL_CALLS]", "mistral", ""),
        ("[TOOL_CALLS][THINK]", "mistral", "mistral"),
        ("<｜tool▁calls▁begin｜>```json</think>", "deepseek-v3", "think"),
        ("<｜tool▁calls▁begin｜></think>", "deepseek-v31", "think"),
        ("<｜DSML｜function_calls>", "deepseek-v32", ""),
        ("<|tool_calls_section_begin|>", "kimi-k2", ""),
        ("<|tool_calls_section_begin|> </think>", "kimi-k2", "kimi-k2"),
        ("<|channel|>analysis<|message|> functions.", "harmony", "harmony"),
        ("◁think▷", "", "kimi"),
        ("{{ message.content }}", "", ""),
    ],
)
def test_templates_show_their_marks(template: str, tool_call: str, reasoning: str) -> None:
    assert selection.tool_call_parser_of("llama", template) == tool_call
    assert selection.reasoning_parser_of("llama", template) == reasoning


def test_a_model_without_a_template_goes_by_its_type() -> None:
    parsers = ModelParsers.choose(ModelConfig(), "deepseek_v32", "")
    assert parsers.tool_call is TOOL_CALL_PARSERS.load("deepseek-v32")
    assert parsers.reasoning is REASONING_PARSERS.load("think")


def test_every_automatic_choice_exists() -> None:
    for table in (selection._TOOL_CALL_MARKS, selection._REASONING_MARKS):
        registry = TOOL_CALL_PARSERS if table is selection._TOOL_CALL_MARKS else REASONING_PARSERS
        assert all(registry.resolve(name) == name for _, name in table)
    assert all(TOOL_CALL_PARSERS.resolve(name) == name for name in selection._TOOL_CALL_TYPES.values())
    assert all(REASONING_PARSERS.resolve(name) == name for name in selection._REASONING_TYPES.values())


def test_a_parser_is_imported_only_when_it_is_chosen() -> None:
    program = (
        "import sys; from xllm_server.parsers.model_parsers import ModelParsers\n"
        "from xllm_framework.config import ModelConfig\n"
        "ModelParsers.choose(ModelConfig(tool_call_parser='hermes'), '', '')\n"
        "print([name for name in ('hermes', 'elements', 'harmony') if f'xllm_server.parsers.tool_call.{name}' in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['hermes']"
