"""Tokenizers of folders that transformers wrote give transformers' ids and texts."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from xllm_framework.model import ModelFiles
from xllm_framework.tokenizer import load_tokenizer

TEXT = ["The quick brown fox jumps over the lazy dog. 12345 Zürich 客单价 😀 don't stop\n\nnow  please"] * 4


def byte_level():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def sentencepiece():
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        TEXT[:1], trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    )
    model = backend.model
    plain = tokenizers.Tokenizer(model)
    plain.normalizer, plain.decoder = backend.normalizer, backend.decoder
    return plain


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def both(request, tmp_path_factory):
    """Return (transformers' tokenizer, ours) from one saved folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    saved = PreTrainedTokenizerFast(
        tokenizer_object=request.param(), bos_token="<s>", eos_token="</s>", additional_special_tokens=["<|x|>"]
    )
    saved.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder), load_tokenizer(ModelFiles(folder, "hf", "t"))


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(max_size=40)
    | st.lists(st.sampled_from(["<s>", "<|x|>", "The ", "12", "客", " "]), max_size=8).map("".join)
)
def test_ids_and_texts_are_equal(both, text):
    theirs, ours = both
    for adds_special in (True, False):
        ids = theirs.encode(text, add_special_tokens=adds_special)
        assert ours.encode(text, add_special_tokens=adds_special) == ids
        for skips in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skips) == expected


def test_special_tokens_are_the_same(both):
    theirs, ours = both
    assert {token_id for token_id in range(ours.vocab_size) if ours.is_special(token_id)} == set(theirs.all_special_ids)
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    assert ours.vocab_size == len(theirs)
