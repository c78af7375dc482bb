"""Tokenizers built from GGUF metadata."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_gguf import tiny_llama_metadata, write_gguf
from xllm_framework.config import LoadConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelFiles, resolve_model
from xllm_framework.model.gguf_file import GGUFFile
from xllm_framework.tokenizer import load_tokenizer
from xllm_framework.tokenizer.gguf_tokenizer import load_gguf_tokenizer

DATA = Path(__file__).parent / "data"


def recorded(name):
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def demo():
    return load_tokenizer(resolve_model("", LoadConfig()))


def tiny(tmp_path, **changes):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama_metadata(**changes))
    return load_tokenizer(ModelFiles(path, "gguf", "tiny"))


def test_tokens_equal_llama_cpps(demo):
    pairs = recorded("llama_cpp_tokens")
    assert len(pairs) == 3000
    assert [text for text, ids in pairs if demo.encode(text, add_special_tokens=False) != ids] == []


@pytest.mark.parametrize("rule", ["default", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_tokens_of_other_word_rules_equal_llama_cpps(rule):
    file = GGUFFile(resolve_model("", LoadConfig()).path)
    file.metadata["tokenizer.ggml.pre"] = rule
    tokenizer = load_gguf_tokenizer(file)
    texts = [text for text, _ in recorded("llama_cpp_tokens")]
    expected = recorded("llama_cpp_word_rules")[rule]
    assert [tokenizer.encode(text, add_special_tokens=False) for text in texts[: len(expected)]] == expected


def test_recorded_tokens_decode_to_their_text(demo):
    for text, ids in recorded("llama_cpp_tokens"):
        assert demo.decode(ids, skip_special_tokens=False) == text
        assert demo.join_bytes(ids, skip_special_tokens=False) == text.encode()


def test_digits_are_single_tokens(demo):
    assert [demo.token_text(token_id) for token_id in demo.encode("123456", add_special_tokens=True)] == list("123456")


def test_control_tokens_are_found_in_text_and_skipped_in_output(demo):
    ids = demo.encode("<|im_start|>user\nhi<|im_end|>", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (1, 2)
    assert [token_id for token_id in ids if demo.is_special(token_id)] == [1, 2]
    assert demo.decode(ids, skip_special_tokens=True) == "user\nhi"
    assert demo.token_bytes(1) == b"<|im_start|>"


def test_end_tokens_and_size(demo):
    assert demo.eos_token_ids == (2, 0)
    assert demo.vocab_size == 49152


def test_token_bytes_split_characters(demo):
    ids = demo.encode("客单价 😀", add_special_tokens=False)
    pieces = [demo.token_bytes(token_id) for token_id in ids]
    assert b"".join(pieces).decode() == "客单价 😀"
    assert any("\ufffd" in piece.decode("utf-8", "replace") for piece in pieces)


def test_ids_beyond_the_vocabulary_are_empty(demo):
    assert demo.token_bytes(49152) == demo.token_bytes(-1) == b""
    assert demo.decode([49152, -1, 10**9], skip_special_tokens=False) == ""


def test_lone_surrogates_count_as_replacement_characters(demo):
    assert demo.encode("a\ud83db", add_special_tokens=False) == demo.encode("a\ufffdb", add_special_tokens=False)


# The vocabulary lacks six control characters and the bytes of planes 4 and above; like llama.cpp we leave them out.
KNOWN_CHARACTERS = st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d")


@settings(deadline=None, max_examples=100)
@given(text=st.text(KNOWN_CHARACTERS, max_size=40))
def test_every_text_survives(demo, text):
    assert demo.decode(demo.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize("unit", ["Z", " ", "7", "\u0301", "e\u0301", "\n", " \n", "客", "😀", "a1 ", "'"])
def test_a_long_run_of_anything_is_encoded(demo, unit):
    text = unit * (200_000 // len(unit))
    ids = demo.encode(text, add_special_tokens=False)
    assert demo.decode(ids, skip_special_tokens=False) == text


def test_texts_too_long_for_a_number_of_tokens_are_known_without_encoding(demo):
    longest = max((demo.token_text(token_id) for token_id in range(demo.vocab_size)), key=len)
    assert demo.max_text_length(10) == 10 * len(longest)
    assert len(demo.encode(longest, add_special_tokens=False)) == 1


def test_long_and_short_texts_are_encoded_alike(demo):
    sentence = "The 42 quick brown foxes don't jump. "
    once = demo.encode(sentence, add_special_tokens=False)
    assert demo.encode(sentence * 200, add_special_tokens=False)[: len(once) - 1] == once[:-1]


def test_threads_share_one_tokenizer(demo):
    texts = [f"<|im_start|>user {index} {'x' * index}" for index in range(400)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: demo.encode(text, add_special_tokens=False), texts))
    assert together == [demo.encode(text, add_special_tokens=False) for text in texts]


def test_bos_is_added_when_the_file_says_so(tmp_path):
    assert tiny(tmp_path).encode("ab", add_special_tokens=True) == [5]
    adding = tiny(tmp_path, tokenizer__ggml__add_bos_token=True)
    assert adding.encode("ab", add_special_tokens=True) == [1, 5]
    assert adding.encode("ab", add_special_tokens=False) == [5]
    by_rule = tiny(tmp_path, tokenizer__ggml__pre="llama-bpe")
    assert by_rule.encode("ab", add_special_tokens=True) == [1, 5]


def test_end_tokens_are_special_whatever_their_type(tmp_path):
    types = np.array([3, 3, 1, 1, 1, 1, 1, 4], np.int32)
    tokenizer = tiny(tmp_path, tokenizer__ggml__token_type=types)
    assert tokenizer.encode("a<|im_end|>1", add_special_tokens=False) == [3, 2, 7]
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(7)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "a1234 b", ["a", "1234", " b"]),
        ("smollm", "a1234 b", ["a", "1", "2", "3", "4", " b"]),
        ("llama-bpe", "a1234  b\n\nDON'T", ["a", "123", "4", " ", " b", "\n\n", "DON", "'T"]),
        ("qwen2", "a12 b\n c", ["a", "1", "2", " b", "\n", " c"]),
        ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
        ("gpt-4o", "Don't 1234/x", ["Don't", " ", "123", "4", "/x"]),
        ("deepseek-coder", "a\nb12", ["a", "\n", "b", "1", "2"]),
        ("default", "a1234!", ["a", "123", "4", "!"]),
    ],
)
def test_words_of_each_rule(pre, text, words):
    from xllm_framework.tokenizer.pre_tokenizers import WORD_RULES, byte_level_words

    pieces = byte_level_words(WORD_RULES[pre]).pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in pieces] == words


SENTENCEPIECE = {
    "tokenizer__ggml__model": "llama",
    "tokenizer__ggml__pre": None,
    "tokenizer__ggml__merges": None,
    "tokenizer__ggml__tokens": [
        "<unk>",
        "<s>",
        "</s>",
        "<0x0A>",
        "<0xE5>",
        "<0xAE>",
        "<0xA2>",
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
    ],
    "tokenizer__ggml__token_type": np.array([2, 3, 3, 6, 6, 6, 6, 1, 1, 1, 1, 1], np.int32),
    "tokenizer__ggml__scores": np.array([0, 0, 0, 0, 0, 0, 0, -9, -7, -8, -1, -2], np.float32),
}


def test_sentencepiece_vocabulary(tmp_path):
    tokenizer = tiny(tmp_path, **SENTENCEPIECE)
    ids = tokenizer.encode("ab\n客a", add_special_tokens=True)
    assert ids == [1, 10, 9, 3, 4, 5, 6, 8]
    assert tokenizer.token_bytes(10) == b" a"
    assert tokenizer.token_bytes(3) == b"\n"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab\n客a"
    assert tokenizer.decode(ids[1:], skip_special_tokens=True, is_continuation=True) == " ab\n客a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s> ab\n客a"
    assert tokenizer.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer__ggml__pre": "martian"}, "tokenizer.ggml.pre is 'martian'"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer__ggml__tokens": "abc"}, "tokenizer.ggml.tokens is no list"),
        ({"tokenizer__ggml__token_type": np.array([1], np.int32)}, "tokenizer.ggml.token_type has 1 entries"),
        ({"tokenizer__ggml__merges": ["ab"]}, "'ab', which is no pair"),
        ({"tokenizer__ggml__merges": ["x y"]}, "do not fit the vocabulary"),
        ({**SENTENCEPIECE, "tokenizer__ggml__scores": None}, "tokenizer.ggml.scores must hold"),
    ],
)
def test_a_broken_vocabulary_is_named(tmp_path, changes, words):
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf") as error:
        tiny(tmp_path, **changes)
    assert words in error.value.message
