"""Tokenizers of folders in Hugging Face layout."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelFiles
from xllm_framework.tokenizer import load_tokenizer

TOKENS = ["a", "b", "ab", "Ġ", "Ġa", "<s>", "</s>", "<think>"]


def write_tokenizer(folder, *, post_processor=None, truncates=False, added=("<s>", "</s>")):
    backend = tokenizers.Tokenizer(
        models.BPE({token: index for index, token in enumerate(TOKENS)}, [("a", "b"), ("Ġ", "a")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(added))
    if post_processor is not None:
        backend.post_processor = post_processor
    if truncates:
        backend.enable_truncation(2)
        backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))


def load(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(ModelFiles(folder, "hf", "m"))


BOS_FIRST = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 5)])


def test_the_post_processor_adds_special_tokens(tmp_path):
    write_tokenizer(tmp_path, post_processor=BOS_FIRST)
    tokenizer = load(tmp_path)
    assert tokenizer.encode("ab a", add_special_tokens=True) == [5, 2, 4]
    assert tokenizer.encode("ab a", add_special_tokens=False) == [2, 4]
    assert tokenizer.encode("<s>ab", add_special_tokens=False) == [5, 2]


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, [5, 2]),
        ({"add_bos_token": True}, [5, 2]),
        ({"add_bos_token": False}, [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [5, 2, 6]),
    ],
)
def test_explicit_options_decide_what_a_text_gets(tmp_path, config, ids):
    write_tokenizer(tmp_path, post_processor=BOS_FIRST)
    tokenizer = load(tmp_path, bos_token="<s>", eos_token={"content": "</s>"}, **config)
    assert tokenizer.encode("ab", add_special_tokens=True) == ids


def test_the_end_token_is_known_and_special(tmp_path):
    write_tokenizer(tmp_path, added=["<s>"])
    tokenizer = load(tmp_path, eos_token="</s>")
    assert tokenizer.eos_token_ids == (6,)
    assert tokenizer.is_special(6)
    assert tokenizer.encode("ab</s>", add_special_tokens=False) == [2, 6]
    assert tokenizer.decode([2, 6], skip_special_tokens=True) == "ab"


def test_tokens_that_only_the_configuration_lists_are_added(tmp_path):
    write_tokenizer(tmp_path)
    listed = {
        "5": {"content": "<s>", "special": True},
        "7": {"content": "<think>", "special": False},
        "8": {"content": "<tool>", "special": True},
        "12": {"content": "<gap>", "special": True},
    }
    tokenizer = load(tmp_path, added_tokens_decoder=listed)
    assert tokenizer.encode("<think>ab<tool>", add_special_tokens=False) == [7, 2, 8]
    assert not tokenizer.is_special(7)
    assert tokenizer.is_special(8)
    assert tokenizer.vocab_size == 9
    assert tokenizer.token_text(8) == "<tool>"


def test_a_saved_truncation_and_padding_are_off(tmp_path):
    write_tokenizer(tmp_path, truncates=True)
    assert load(tmp_path).encode("ab ab ab a", add_special_tokens=False) == [2, 3, 2, 3, 2, 4]


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json\.$"):
        load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json; tokenizer\.model must be converted"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}']
)
def test_a_broken_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        load(tmp_path)


def test_a_broken_configuration_is_named(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(ModelFiles(tmp_path, "hf", "m"))
