"""Prompts of a language model with embeddings in the place of some tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.rec_models import HISTORIES, reference_model, write_catalogue
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidRequest
from xllm_framework.request.rec_messages import INPUT_EMBEDDING, INPUT_INDICES, INPUT_TOKENS, InputTensor
from xllm_runtime.recommender import Recommender

OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_batched_tokens": 32}


def tensors(tokens: list[int], indices: list[int], embeddings: np.ndarray) -> tuple[InputTensor, ...]:
    return (
        InputTensor(INPUT_TOKENS, "int64", (len(tokens),), np.array(tokens, "<i8").tobytes()),
        InputTensor(INPUT_INDICES, "int64", (len(indices),), np.array(indices, "<i8").tobytes()),
        InputTensor(INPUT_EMBEDDING, "float32", embeddings.shape, embeddings.astype("<f4").tobytes()),
    )


def search(recommender: Recommender, prompt, given=()):
    master, done = recommender.master, []
    master.submit(master.prepare_search(prompt, master.search_params(beam_width=20), tensors=given), done.append)
    assert master._dispatcher.wait_until_idle(60)
    assert done[0].error is None, done[0].error
    return done[0]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory):
    item_file = str(write_catalogue(tmp_path_factory.mktemp("items")))
    checkpoint = str(tiny_checkpoint("qwen3"))
    with Recommender(checkpoint, item_file=item_file, model_impl="python", **OPTIONS) as recommender:
        yield recommender


def test_the_tokens_own_embeddings_change_nothing(opened: Recommender):
    history = HISTORIES[3]
    indices = [0, 5, 31, 32, 33, 69]
    table = reference_model().get_input_embeddings().weight.detach().numpy()
    expected = search(opened, history)
    hidden = [999 if n in indices else token for n, token in enumerate(history)]
    found = search(opened, None, tensors(hidden, indices, table[[history[n] for n in indices]]))
    assert [path.token_ids for path in found.paths] == [path.token_ids for path in expected.paths]
    np.testing.assert_allclose([p.score for p in found.paths], [p.score for p in expected.paths], atol=1e-5)


def test_other_embeddings_give_other_answers_also_from_the_prefix_cache(opened: Recommender):
    tokens = list(range(40))
    random = np.random.default_rng(0)
    first, second = (random.standard_normal((2, 64)).astype(np.float32) for _ in range(2))
    one = search(opened, None, tensors(tokens, [3, 4], first))
    two = search(opened, None, tensors(tokens, [3, 4], second))
    again = search(opened, None, tensors(tokens, [3, 4], first))
    assert two.num_cached_tokens == 0
    assert again.num_cached_tokens == 32
    assert [path.score for path in one.paths] != [path.score for path in two.paths]
    np.testing.assert_allclose([p.score for p in one.paths], [p.score for p in again.paths], atol=1e-5)


@pytest.mark.parametrize(
    ("prompt", "given", "message"),
    [
        ([1], tensors([1, 2], [0], np.zeros((1, 64))), "not both"),
        (None, tensors([1, 2], [2], np.zeros((1, 64))), "places below 2"),
        (None, tensors([1, 2], [0], np.zeros((1, 63))), "shape"),
        (None, tensors([1, 2], [0], np.zeros((1, 64)))[:2], "come together"),
    ],
)
def test_wrong_tensors_are_named(opened: Recommender, prompt, given, message: str):
    with pytest.raises(InvalidRequest, match=message):
        search(opened, prompt, given)


def test_the_native_implementation_reads_none(tmp_path: Path):
    item_file = str(write_catalogue(tmp_path))
    with (
        Recommender(str(tiny_checkpoint("qwen3")), item_file=item_file, model_impl="native", **OPTIONS) as recommender,
        pytest.raises(InvalidRequest, match="model_impl python"),
    ):
        search(recommender, None, tensors([1, 2], [0], np.zeros((1, 64))))
