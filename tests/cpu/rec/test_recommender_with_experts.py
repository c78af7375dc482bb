"""A language model with experts as recommender: its searches are exact, alone, together, and whatever is kept of prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.rec_models import HISTORIES, random_items, reference_model, searched_by_hand, write_catalogue
from support.tiny_checkpoints import tiny_checkpoint
from xllm_runtime.recommender import Recommender

EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
    "norm_topk_prob": True,
}
OPTIONS = {"device": "cpu", "dtype": "float32", "check_integrity": True, "threads": 1}


WIDTHS = (8, 512)
SOME = HISTORIES[:3]


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
    """Paths and scores by (width, number of the history), by transformers and without a beam's short cuts."""
    items, model = random_items(), reference_model("qwen3_moe", **EXPERTS)
    return {
        (width, number): searched_by_hand(history, items, width, model)
        for width in WIDTHS
        for number, history in enumerate(SOME)
    }


@pytest.mark.parametrize(
    "changes",
    [{}, {"enable_rec_prefill_only": True}, {"enable_prefix_cache": False, "max_num_batched_tokens": 24}],
    ids=["as it is", "each round anew", "no prefix cache and small batches"],
)
def test_searches_equal_exhaustive_ones(tmp_path: Path, expected: dict, changes: dict[str, object]):
    item_file, checkpoint = str(write_catalogue(tmp_path)), str(tiny_checkpoint("qwen3_moe", **EXPERTS))
    with Recommender(checkpoint, item_file=item_file, **OPTIONS | changes) as recommender:
        for width in WIDTHS:
            together = recommender.recommend(SOME, beam_width=width)
            alone = recommender.recommend(SOME[:1], beam_width=width)[0]
            assert [path.token_ids for path in alone.paths] == [path.token_ids for path in together[0].paths]
            for number, output in enumerate(together):
                paths, scores = expected[width, number]
                assert [path.token_ids for path in output.paths] == paths.tolist()
                np.testing.assert_allclose([path.score for path in output.paths], scores, atol=1e-5)
