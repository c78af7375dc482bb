"""OneRec against transformers' T5 of the same weights: logits, whole searches, and what tensors stand for."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from support.rec_models import HISTORIES, random_items, write_catalogue
from xllm_framework.errors import InvalidRequest
from xllm_framework.rec import InvalidCatalogue
from xllm_framework.request.rec_messages import DECODER_CONTEXT, SPARSE_EMBEDDING, InputTensor
from xllm_runtime.recommender import Recommender

SHAPE = {
    "vocab_size": 260,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
KINDS = {
    "relu": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "gated": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
ITEMS = random_items()


@cache
def reference(kind: str) -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(**SHAPE, **KINDS[kind])).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def opened(kind: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("onerec")
    reference(kind).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["OneRecForConditionalGeneration"]}))
    write_catalogue(folder)
    with Recommender(str(folder), backend="auto", device="cpu", dtype="float32", threads=1) as recommender:
        yield recommender


@torch.no_grad()
def forced(kind: str, embedded: torch.Tensor, paths: np.ndarray, context: torch.Tensor | None = None) -> np.ndarray:
    """Return the log-probability of each token of each path by transformers."""
    model = reference(kind)
    rows = torch.tensor([[SHAPE["decoder_start_token_id"], *path[:-1]] for path in paths.tolist()])
    inputs = model.shared(rows)
    skipped = 0
    if context is not None:
        inputs, skipped = torch.cat([context.expand(len(rows), *context.shape), inputs], 1), len(context)
    logits = model(inputs_embeds=embedded.expand(len(rows), *embedded.shape), decoder_inputs_embeds=inputs).logits
    logprobs = logits[:, skipped:].log_softmax(-1)
    return logprobs.gather(2, torch.tensor(paths.astype(np.int64))[..., None])[..., 0].numpy()


def check(kind: str, output, embedded: torch.Tensor, context: torch.Tensor | None = None) -> None:
    """Check that a search over everything found every item, in order, with transformers' scores."""
    paths = np.unique(ITEMS.tokens, axis=0)
    expected = forced(kind, embedded, paths, context)
    order = np.argsort(-expected.sum(axis=1), kind="stable")
    assert output.error is None
    assert [path.token_ids for path in output.paths] == paths[order].tolist()
    np.testing.assert_allclose([path.logprobs for path in output.paths], expected[order], atol=2e-5)
    assert sorted(item for path in output.paths for item in path.item_ids) == ITEMS.item_ids.tolist()


def search(recommender: Recommender, prompt: list[int] | None, *tensors: InputTensor, **params):
    master = recommender.master
    done: list = []
    prepared = master.prepare_search(prompt, master.search_params(beam_width=512, **params), tensors=tensors)
    master.submit(prepared, done.append)
    assert master._dispatcher.wait_until_idle(60)
    return done[0]


def tensor(name: str, array: torch.Tensor) -> InputTensor:
    return InputTensor(name, "float32", tuple(array.shape), array.numpy().tobytes())


def test_searches_equal_transformers(opened: Recommender, kind: str):
    outputs = opened.recommend(HISTORIES, beam_width=512)
    for history, output in zip(HISTORIES, outputs, strict=True):
        check(kind, output, reference(kind).shared(torch.tensor(history)).detach())


def test_embeddings_stand_for_a_history_and_before_paths(opened: Recommender, kind: str):
    torch.manual_seed(1)
    history, context = torch.randn(11, 32), torch.randn(3, 32)
    check(kind, search(opened, None, tensor(SPARSE_EMBEDDING, history)), history)
    both = search(opened, None, tensor(SPARSE_EMBEDDING, history), tensor(DECODER_CONTEXT, context))
    check(kind, both, history, context)
    embedded = reference(kind).shared(torch.tensor(HISTORIES[0])).detach()
    check(kind, search(opened, HISTORIES[0], tensor(DECODER_CONTEXT, context)), embedded, context)


def test_wrong_tensors_are_named(opened: Recommender):
    history = torch.randn(4, 32)
    for prompt, tensors, message in (
        (HISTORIES[0], [tensor(SPARSE_EMBEDDING, history)], "not both"),
        (None, [tensor(SPARSE_EMBEDDING, history[:, :5])], "shape"),
        (None, [tensor("other", history)], "takes sparse_embedding"),
        (None, [tensor(SPARSE_EMBEDDING, history)] * 2, "twice"),
        (None, [tensor(DECODER_CONTEXT, history)], "Send a prompt"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            search(opened, prompt, *tensors)


def test_a_text_needs_a_tokenizer(opened: Recommender):
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        search(opened, "a text")


def test_a_catalogue_must_fit(opened: Recommender, tmp_path: Path):
    with pytest.raises(InvalidCatalogue):
        opened.change_catalogue(write_catalogue(tmp_path, random_items(5, codes=300)))
