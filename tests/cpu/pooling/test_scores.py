"""Scores of pairs: by cosine, by the answers yes and no, by a classifier; all as transformers computes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from support.embedding_checkpoints import classifier_checkpoint, embedding_checkpoint, word_tokenizer
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidConfig, InvalidRequest, UnsupportedModel
from xllm_runtime import LLM
from xllm_runtime.master.reranker_prompt import INSTRUCTION, PREFIX, SUFFIX

PAIRS = [("What is the capital?", "Paris is."), ("What is the capital?", "Bread is good."), ("x", "x")]
QUERIES, DOCUMENTS = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]


def open_llm(folder: Path, **options: object) -> LLM:
    defaults = {"dtype": "float32", "device": "cpu", "threads": 1, "num_blocks": 400, "block_size": 16}
    return LLM(str(folder), **{**defaults, "check_integrity": True, **options})


def reranker_text(query: str, document: str) -> str:
    return f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}{SUFFIX}"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with the tokens yes and no, and room for the prompt."""
    folder = tmp_path_factory.mktemp("models") / "Tiny-Reranker"
    shutil.copytree(tiny_checkpoint("qwen3", max_position_embeddings=1024), folder)
    word_tokenizer(folder, ("yes", "no"))
    return folder


def test_cosine_of_an_embedding_model(tmp_path: Path) -> None:
    with open_llm(embedding_checkpoint(tmp_path / "model", "qwen3", "lasttoken")) as llm:
        scores = llm.score(QUERIES, DOCUMENTS)
        first, second = (np.stack([o.embedding for o in llm.embed(texts)]) for texts in (QUERIES, DOCUMENTS))
        assert llm.score("x", ["x", "y"])[0] == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(InvalidRequest, match="2 texts for 3"):
            llm.score(["x", "y"], DOCUMENTS)
    np.testing.assert_allclose(scores, (first * second).sum(1), atol=1e-5)
    assert scores[2] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("model_impl", ["python", "native"])
def test_the_answers_yes_and_no(reranker: Path, model_impl: str) -> None:
    from transformers import AutoModelForCausalLM

    with open_llm(reranker, model_impl=model_impl) as llm:
        scores = llm.score(QUERIES, DOCUMENTS)
        encode = llm.master.tokenizer.encode
        prompts = [encode(reranker_text(*pair), add_special_tokens=False) for pair in PAIRS]
        yes, no = (encode(word, add_special_tokens=False)[0] for word in ("yes", "no"))
    model = AutoModelForCausalLM.from_pretrained(reranker, dtype=torch.float32)
    for prompt, score in zip(prompts, scores, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1, [no, yes]]
        assert score == pytest.approx(float(logits.softmax(-1)[1]), abs=1e-4)


def test_the_option_decides_how_pairs_are_scored(reranker: Path) -> None:
    with open_llm(reranker, scoring="cosine") as llm:
        assert llm.score("x", "x") == [pytest.approx(1.0, abs=1e-5)]
    with pytest.raises(InvalidConfig, match="yes and no"):
        open_llm(tiny_checkpoint("qwen3"), scoring="yes_no")


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_a_classifier_of_one_label(tmp_path: Path, model_type: str) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = classifier_checkpoint(tmp_path / "model", model_type, 1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    with open_llm(folder) as llm:
        scores = llm.score(QUERIES, DOCUMENTS)
        texts = [reranker_text(*pair) if model_type == "qwen3" else "".join(pair) for pair in PAIRS]
        prompts = [llm.master.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        for refused in (llm.embed("x")[0], llm.generate("x")[0]):
            assert refused.error_kind == "invalid_request"
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    for prompt, score in zip(prompts, scores, strict=True):
        with torch.inference_mode():
            [logit] = model(torch.tensor([prompt])).logits[0]
        assert score == pytest.approx(float(logit.sigmoid()), abs=1e-4)


def test_what_cannot_score(tmp_path: Path) -> None:
    folder = classifier_checkpoint(tmp_path / "model", "qwen2", 3)
    with open_llm(folder) as llm, pytest.raises(InvalidRequest, match="3 labels"):
        llm.score("x", "y")
    with pytest.raises(UnsupportedModel, match="is not one of"):
        open_llm(folder, model_impl="native")
