"""Text of tokens that come one by one equals the text of all of them."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from xllm_framework.config import LoadConfig
from xllm_framework.model import resolve_model
from xllm_framework.tokenizer import IncrementalDetokenizer, Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def demo():
    return load_tokenizer(resolve_model("", LoadConfig()))


def sentencepiece_tokenizer():
    vocabulary = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁wor", "ld", "客"]
    model = models.BPE(
        {token: index for index, token in enumerate(vocabulary)}, [], byte_fallback=True, unk_token="<unk>"
    )
    backend = tokenizers.Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


def word_tokenizer():
    model = models.WordLevel({"<unk>": 0, "the": 1, "cat": 2, "sat": 3, "<end>": 4}, unk_token="<unk>")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend)


def stream(tokenizer, chunks, **options):
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [detokenizer.append(chunk) for chunk in chunks], detokenizer.flush()


def one_by_one(ids):
    return [[token_id] for token_id in ids]


def byte_ids(tokenizer, pieces):
    """Return ids of the demo vocabulary whose bytes are exactly `pieces`."""
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [by_bytes[piece] for piece in pieces]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\xf0\x9f", b"\x98\x80"],
        [b"\xf0\x9f", b"\x98", b"\x80"],
        [b"\xe5\xae", b"\xa2"],
        [b"\xe5", b"\xae", b"\xa2", b"\xe5", b"\x8d\x95"],
    ],
)
def test_a_character_comes_whole(demo, pieces):
    try:
        ids = byte_ids(demo, pieces)
    except KeyError:
        ids = byte_ids(demo, [bytes([byte]) for piece in pieces for byte in piece])
    deltas, rest = stream(demo, one_by_one(ids), skip_special_tokens=True)
    assert "".join(deltas) == b"".join(pieces).decode()
    assert rest == ""


def test_a_token_with_the_tail_of_one_character_and_the_head_of_the_next():
    vocabulary = {"å®¢åį": 0, "ķä": 1, "»·": 2}  # 客单价 cut inside 单 and inside 价
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend)
    assert stream(tokenizer, [[0], [1], [2]], skip_special_tokens=True) == (["客", "单", "价"], "")
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in range(3)).decode() == "客单价"


def test_an_incomplete_character_appears_at_the_end_only(demo):
    ids = demo.encode("hi 😀", add_special_tokens=False)[:-1]
    deltas, rest = stream(demo, one_by_one(ids), skip_special_tokens=True)
    assert "\ufffd" not in "".join(deltas)
    assert rest == "\ufffd"
    assert "".join(deltas) + rest == demo.decode(ids, skip_special_tokens=True)


@settings(deadline=None, max_examples=200)
@given(
    ids=st.lists(st.integers(0, 49151) | st.integers(0, 500), max_size=40),
    size=st.integers(1, 5),
    skip=st.booleans(),
)
def test_byte_level_deltas_join_to_the_whole(demo, ids, size, skip):
    chunks = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
    deltas, rest = stream(demo, chunks, skip_special_tokens=skip)
    assert "".join(deltas) + rest == demo.decode(ids, skip_special_tokens=skip)


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 262), max_size=20), skip=st.booleans(), is_continuation=st.booleans())
def test_sentencepiece_deltas_join_to_the_whole(ids, skip, is_continuation):
    tokenizer = sentencepiece_tokenizer()
    options = {"skip_special_tokens": skip, "is_continuation": is_continuation}
    deltas, rest = stream(tokenizer, one_by_one(ids), **options)
    assert "".join(deltas) + rest == tokenizer.decode(ids, **options)


def test_sentencepiece_keeps_the_space_of_a_continuation():
    tokenizer = sentencepiece_tokenizer()
    ids = [259, 260, 261, 262]
    assert stream(tokenizer, one_by_one(ids), skip_special_tokens=True) == (["Hello", " wor", "ld", "客"], "")
    deltas, _ = stream(tokenizer, one_by_one(ids), skip_special_tokens=True, is_continuation=True)
    assert deltas[0] == " Hello"


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 4), max_size=12), size=st.integers(1, 3), skip=st.booleans())
def test_word_deltas_join_to_the_whole(ids, size, skip):
    tokenizer = word_tokenizer()
    chunks = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
    deltas, rest = stream(tokenizer, chunks, skip_special_tokens=skip)
    assert "".join(deltas) + rest == tokenizer.decode(ids, skip_special_tokens=skip)


def test_many_tokens_without_a_whole_character_cost_linear_time(demo):
    [half] = byte_ids(demo, [b"\x98"])
    deltas, rest = stream(demo, one_by_one([half] * 50_000), skip_special_tokens=True)
    assert "".join(deltas) + rest == "\ufffd" * 50_000
