"""The offline recommender on tiny models: exact searches, scores, items, and the same answers however they are computed."""

from __future__ import annotations

import queue
from pathlib import Path

import numpy as np
import pytest

from support.rec_models import HISTORIES, forced_logprobs, random_items, searched_by_hand, write_catalogue
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_framework.rec import InvalidCatalogue
from xllm_runtime import LLM
from xllm_runtime.recommender import Recommender

OPTIONS = {"device": "cpu", "dtype": "float32", "check_integrity": True, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogue")


@pytest.fixture(scope="module", params=["native", "python"])
def recommender(request: pytest.FixtureRequest, folder: Path):
    item_file = str(write_catalogue(folder))
    with Recommender(str(tiny_checkpoint("qwen3")), item_file=item_file, model_impl=request.param, **OPTIONS) as opened:
        yield opened


def answers(outputs):
    return [[(path.token_ids, path.item_ids) for path in output.paths] for output in outputs]


@pytest.mark.parametrize("width", [1, 2, 8, 64])
def test_a_search_equals_one_by_hand(recommender: Recommender, width: int):
    items = random_items()
    for history, output in zip(HISTORIES, recommender.recommend(HISTORIES, beam_width=width), strict=True):
        paths, scores = searched_by_hand(history, items, width)
        assert [path.token_ids for path in output.paths] == paths.tolist()
        np.testing.assert_allclose([path.score for path in output.paths], scores, atol=1e-5)


def test_a_wide_search_finds_every_item_in_order_of_its_probability(recommender: Recommender):
    items = random_items()
    paths = np.unique(items.tokens, axis=0)
    output = recommender.recommend([HISTORIES[1]], beam_width=512)[0]
    scores = forced_logprobs(HISTORIES[1], paths).sum(axis=1)
    order = np.argsort(-scores, kind="stable")
    assert [path.token_ids for path in output.paths] == paths[order].tolist()
    np.testing.assert_allclose([path.score for path in output.paths], scores[order], atol=1e-5)
    assert sorted(item for path in output.paths for item in path.item_ids) == items.item_ids.tolist()


def test_scores_are_teacher_forced_log_probabilities(recommender: Recommender):
    for history, output in zip(HISTORIES, recommender.recommend(HISTORIES, beam_width=16), strict=True):
        paths = np.array([path.token_ids for path in output.paths], np.int32)
        expected = forced_logprobs(history, paths)
        np.testing.assert_allclose([path.logprobs for path in output.paths], expected, atol=1e-5)
        np.testing.assert_allclose([path.score for path in output.paths], expected.sum(axis=1), atol=1e-5)


def test_items_are_those_of_the_catalogue(recommender: Recommender):
    items = random_items()
    for path in recommender.recommend([HISTORIES[0]], beam_width=32)[0].paths:
        assert path.item_ids == items.item_ids[(items.tokens == path.token_ids).all(axis=1)].tolist()
        assert path.item_ids


def test_fewer_paths_and_rounds_may_be_asked_for(recommender: Recommender):
    whole = recommender.recommend([HISTORIES[0]], beam_width=8)[0]
    few = recommender.recommend([HISTORIES[0]], beam_width=8, num_return_sequences=3)[0]
    assert answers([few])[0] == answers([whole])[0][:3]
    short = recommender.recommend([HISTORIES[0]], beam_width=8, num_rounds=2)[0]
    assert all(len(path.token_ids) == 2 and not path.item_ids for path in short.paths)


def test_one_or_sixteen_together_make_no_difference(recommender: Recommender):
    histories = [HISTORIES[n % len(HISTORIES)] + [n] for n in range(16)]
    alone = [recommender.recommend([history], beam_width=5 + n)[0] for n, history in enumerate(histories)]
    master = recommender.master
    master.pause("keep")  # so that all of them are in one batch
    done: queue.SimpleQueue = queue.SimpleQueue()
    for n, history in enumerate(histories):
        params = master.search_params(beam_width=5 + n)
        master.submit(master.prepare_search(history, params, request_id=str(n)), done.put)
    master.resume()
    outputs = [done.get(timeout=60) for _ in histories]
    together = sorted(outputs, key=lambda output: int(output.request_id))
    assert answers(together) == answers(alone)
    for one, two in zip(together, alone, strict=True):
        np.testing.assert_allclose([p.score for p in one.paths], [p.score for p in two.paths], atol=1e-5)


def test_drawn_paths_follow_their_seed_and_the_catalogue(recommender: Recommender):
    drawn = {"beam_width": 20, "is_sampled": True, "temperature": 0.8}
    first, again = (recommender.recommend([HISTORIES[0]], seed=5, **drawn)[0] for _ in range(2))
    other = recommender.recommend([HISTORIES[0]], seed=6, **drawn)[0]
    beside = recommender.recommend(HISTORIES, seed=5, **drawn)[0]
    assert answers([first]) == answers([again]) == answers([beside])
    assert answers([first]) != answers([other])
    assert all(path.item_ids for path in first.paths)
    paths = np.array([path.token_ids for path in first.paths], np.int32)
    np.testing.assert_allclose([p.logprobs for p in first.paths], forced_logprobs(HISTORIES[0], paths), atol=1e-5)


def test_a_draw_of_one_token_is_the_best(recommender: Recommender):
    best = recommender.recommend([HISTORIES[0]], beam_width=1)[0]
    drawn = recommender.recommend([HISTORIES[0]], beam_width=3, is_sampled=True, top_k=1)[0]
    assert answers([drawn])[0] == answers([best])[0] * 3


def test_a_repeated_history_is_found_in_the_prefix_cache(recommender: Recommender):
    history = [(11 * n) % 240 for n in range(64)]
    first, second = (recommender.recommend([history], beam_width=16)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)
    assert answers([first]) == answers([second])
    np.testing.assert_allclose([p.score for p in first.paths], [p.score for p in second.paths], atol=1e-5)


def test_wrong_histories_fail_alone(recommender: Recommender):
    good, long, unknown = recommender.recommend([HISTORIES[0], [1] * 300, [9999]], beam_width=4)
    assert good.error is None
    assert "max_model_len" in long.error
    assert "9999" in unknown.error
    with pytest.raises(InvalidRequest, match="beam_width"):
        recommender.recommend([HISTORIES[0]], beam_width=513)
    with pytest.raises(InvalidRequest, match="num_return_sequences"):
        recommender.recommend([HISTORIES[0]], beam_width=2, num_return_sequences=3)
    assert "An item has 3 tokens" in recommender.recommend([HISTORIES[0]], num_rounds=4)[0].error


def test_catalogues_change_while_searches_go_on(recommender: Recommender, folder: Path):
    before = recommender.recommend([HISTORIES[0]], beam_width=8)[0]
    other = random_items(30, codes=4, seed=9)
    changed = recommender.change_catalogue(write_catalogue(folder, other, "other.bin"))
    assert changed.num_items == 30
    after = recommender.recommend([HISTORIES[0]], beam_width=8)[0]
    assert after.catalogue_version == before.catalogue_version + 1
    known = {tuple(row) for row in other.tokens.tolist()}
    assert all(tuple(path.token_ids) in known for path in after.paths)
    with pytest.raises(InvalidCatalogue, match="cannot be read"):
        recommender.change_catalogue(folder / "missing.bin")
    recommender.change_catalogue(None)
    assert answers(recommender.recommend([HISTORIES[0]], beam_width=8)) == answers([before])


@pytest.mark.parametrize("model_impl", ["native", "python"])
@pytest.mark.parametrize(
    "changes",
    [
        {"enable_rec_prefill_only": True},
        {"enable_prefix_cache": False},
        {"enable_rec_fast_sampler": False},
        {"rec_worker_max_concurrency": 3},
        {"max_num_batched_tokens": 24},
        {"block_size": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_options_change_no_answer(recommender: Recommender, folder: Path, model_impl: str, changes: dict):
    item_file = str(write_catalogue(folder))
    with Recommender(
        str(tiny_checkpoint("qwen3")), item_file=item_file, model_impl=model_impl, **OPTIONS | changes
    ) as other:
        for histories in (HISTORIES, HISTORIES[1:2]):
            expected = recommender.recommend(histories, beam_width=12)
            found = other.recommend(histories, beam_width=12)
            assert answers(found) == answers(expected)
            for one, two in zip(found, expected, strict=True):
                np.testing.assert_allclose([p.score for p in one.paths], [p.score for p in two.paths], atol=2e-5)


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_other_models_of_the_family(folder: Path, model_type: str):
    item_file = str(write_catalogue(folder))
    found = []
    for model_impl in ("native", "python"):
        checkpoint = str(tiny_checkpoint(model_type))
        with Recommender(checkpoint, item_file=item_file, model_impl=model_impl, **OPTIONS) as opened:
            found.append(opened.recommend(HISTORIES, beam_width=10))
    assert answers(found[0]) == answers(found[1])


def test_without_a_catalogue_every_token_may_follow():
    options = OPTIONS | {"enable_constrained_decoding": False}
    with Recommender(str(tiny_checkpoint("qwen3")), **options) as opened:
        output = opened.recommend([HISTORIES[0]], beam_width=8)[0]
    paths = np.array([path.token_ids for path in output.paths], np.int32)
    assert len(paths) == 8
    assert len(np.unique(paths, axis=0)) == 8
    np.testing.assert_allclose([p.logprobs for p in output.paths], forced_logprobs(HISTORIES[0], paths), atol=1e-5)
    assert not any(path.item_ids for path in output.paths)


def test_the_offline_api_recommends_too(recommender: Recommender, folder: Path):
    item_file = str(write_catalogue(folder))
    with LLM(str(tiny_checkpoint("qwen3")), backend="rec", item_file=item_file, **OPTIONS) as llm:
        assert answers(llm.recommend(HISTORIES, beam_width=4)) == answers(
            recommender.recommend(HISTORIES, beam_width=4)
        )
    with LLM(str(tiny_checkpoint("qwen3")), **OPTIONS) as llm, pytest.raises(InvalidRequest, match="backend"):
        llm.recommend(HISTORIES)


def test_a_model_without_a_catalogue_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="item_file"):
        Recommender(str(tiny_checkpoint("qwen3")), **OPTIONS)
    wrong = write_catalogue(tmp_path, random_items(5, codes=3, tokens_per_item=8))
    with pytest.raises(InvalidCatalogue, match="from 0 to 263"):
        Recommender(str(tiny_checkpoint("qwen3")), item_file=str(wrong), max_decode_rounds=8, **OPTIONS)
