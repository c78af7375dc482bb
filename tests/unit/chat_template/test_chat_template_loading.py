"""Where a model's chat template comes from."""

import json

import pytest

from support.tiny_gguf import tiny_llama_metadata, write_gguf
from xllm_framework.chat_template import load_chat_template
from xllm_framework.config import LoadConfig
from xllm_framework.errors import InvalidConfig, ModelLoadError
from xllm_framework.model import ModelFiles, resolve_model

CHAT = [{"role": "user", "content": "hi"}]


def load(folder, override="", **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_chat_template(ModelFiles(folder, "hf", "m"), override)


def test_the_demo_model_adds_its_default_system_prompt():
    chat_template = load_chat_template(resolve_model("", LoadConfig()))
    assert chat_template.render(CHAT) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    own = chat_template.render([{"role": "system", "content": "S"}, *CHAT], add_generation_prompt=False)
    assert own == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


def test_a_model_without_a_template_has_none(tmp_path):
    assert load(tmp_path) is None
    path = write_gguf(tmp_path / "t.gguf", tiny_llama_metadata(tokenizer__chat_template=None))
    assert load_chat_template(ModelFiles(path, "gguf", "t")) is None


def test_tokenizer_config_holds_one_template_or_several(tmp_path):
    assert load(tmp_path, chat_template="{{ eos_token }}", eos_token={"content": "</s>"}).render(CHAT) == "</s>"
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, {"name": 3}]
    several = load(tmp_path, chat_template=named)
    assert (several.render(CHAT), several.render(CHAT, tools=[{}])) == ("D", "T")


def test_files_of_their_own_go_first(tmp_path):
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert load(tmp_path, chat_template="config").render(CHAT) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    chat_template = load(tmp_path, chat_template="config")
    assert (chat_template.render(CHAT), chat_template.render(CHAT, tools=[{}])) == ("jinja", "tools")


def test_the_operators_file_replaces_the_models(tmp_path):
    (tmp_path / "mine.jinja").write_text("mine{{ bos_token }}")
    broken_own = load(tmp_path, str(tmp_path / "mine.jinja"), chat_template="{% broken", bos_token="<s>")
    assert broken_own.render(CHAT) == "mine<s>"


def test_gguf_templates_and_special_tokens(tmp_path):
    metadata = tiny_llama_metadata(tokenizer__chat_template="{{ bos_token }}{{ eos_token }}")
    metadata |= {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "T"}
    path = write_gguf(tmp_path / "t.gguf", metadata)
    chat_template = load_chat_template(ModelFiles(path, "gguf", "t"))
    assert chat_template.render(CHAT) == "<|im_start|><|im_end|>"
    assert chat_template.render(CHAT, tools=[{}]) == "T"


def test_what_is_broken_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"chat template of .* is broken in line 1"):
        load(tmp_path, chat_template="{% broken")
    with pytest.raises(InvalidConfig, match=r"chat_template file .*nowhere\.jinja cannot be read"):
        load(tmp_path, str(tmp_path / "nowhere.jinja"))
    (tmp_path / "bad.jinja").write_text("{% broken")
    with pytest.raises(InvalidConfig, match=r"bad\.jinja is broken in line 1"):
        load(tmp_path, str(tmp_path / "bad.jinja"))
