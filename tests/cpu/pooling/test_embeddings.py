"""Embeddings equal those of transformers, however they come about: alone, in batches, in chunks, beside others, cached."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from support.embedding_checkpoints import embedding_checkpoint, write_modules
from support.masters import Collector, start
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidRequest, UnsupportedModel
from xllm_runtime import LLM, SamplingParams

PROMPTS = [list(range(3, 4 + length)) for length in (1, 2, 15, 16, 17, 60, 100)]
MODES = ("lasttoken", "mean_tokens", "cls_token")
TOLERANCE = 1e-4


def expected(folder: Path, prompt: list[int], mode: str) -> npt.NDArray[np.float32]:
    """Return transformers' vector, not normalised."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(torch.tensor([prompt])).last_hidden_state[0]
    pooled = {"lasttoken": hidden[-1], "mean_tokens": hidden.mean(0), "cls_token": hidden[0]}[mode]
    return pooled.numpy()


def unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


def open_llm(folder: Path, **options: object) -> LLM:
    defaults = {"dtype": "float32", "device": "cpu", "threads": 1, "num_blocks": 200, "block_size": 8}
    return LLM(str(folder), **{**defaults, "check_integrity": True, **options})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    root = tmp_path_factory.mktemp("embedding")
    return {
        (model_type, mode): embedding_checkpoint(root / f"{model_type}-{mode}", model_type, mode)
        for model_type, mode in [("llama", "lasttoken"), ("qwen2", "cls_token"), *(("qwen3", mode) for mode in MODES)]
    }


@pytest.mark.parametrize("model_impl", ["python", "native"])
@pytest.mark.parametrize("key", [("llama", "lasttoken"), ("qwen2", "cls_token"), *(("qwen3", mode) for mode in MODES)])
def test_equals_transformers(folders: dict[tuple[str, str], Path], key: tuple[str, str], model_impl: str) -> None:
    folder, mode = folders[key], key[1]
    with open_llm(folder, model_impl=model_impl, max_prefill_chunk=16) as llm:
        outputs = llm.embed(PROMPTS)
        again = llm.embed(PROMPTS)
        short = llm.embed(PROMPTS[-1], dimensions=10)[0]
        assert llm.master.ready.model_impl == model_impl
    for prompt, output, repeated in zip(PROMPTS, outputs, again, strict=True):
        vector = expected(folder, prompt, mode)
        assert output.num_prompt_tokens == len(prompt)
        np.testing.assert_allclose(output.embedding, unit(vector), atol=TOLERANCE)
        np.testing.assert_allclose(repeated.embedding, unit(vector), atol=TOLERANCE)
    np.testing.assert_allclose(short.embedding, unit(vector[:10]), atol=TOLERANCE)


def test_a_model_that_does_not_normalise(tmp_path: Path) -> None:
    folder = embedding_checkpoint(tmp_path / "plain", "llama", "mean_tokens", ("Transformer", "Pooling"))
    with open_llm(folder) as llm:
        np.testing.assert_allclose(
            llm.embed(PROMPTS[3])[0].embedding, expected(folder, PROMPTS[3], "mean_tokens"), rtol=TOLERANCE
        )


def test_a_language_model_is_pooled_by_its_last_token_or_as_asked() -> None:
    folder = tiny_checkpoint("qwen2")
    for pooling, mode in (("auto", "lasttoken"), ("mean", "mean_tokens")):
        with open_llm(folder, pooling=pooling) as llm:
            vector = unit(expected(folder, PROMPTS[4], mode))
            np.testing.assert_allclose(llm.embed(PROMPTS[4])[0].embedding, vector, atol=TOLERANCE)


@pytest.mark.parametrize("model_impl", ["python", "native"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("enable_schedule_overlap", [False, True])
def test_company_changes_nothing(model_impl: str, pooling: str, enable_schedule_overlap: bool) -> None:
    """Alone, in a batch of 32, beside generating requests, in chunks and from the cache; and others are not changed by it."""
    folder = tiny_checkpoint("qwen3")
    prompts = [[10 + (7 * index + token) % 200 for token in range(5 + 3 * index)] for index in range(32)]
    options = {"model_impl": model_impl, "pooling": pooling, "enable_schedule_overlap": enable_schedule_overlap}
    greedy = {"max_tokens": 12, "ignore_eos": True}
    with open_llm(folder, **options, enable_prefix_cache=False) as llm:
        alone = [llm.embed(prompt)[0].embedding for prompt in prompts]
        text = [start(llm.master, prompt, **greedy)[1].result().outputs[0].token_ids for prompt in prompts[:4]]
    with open_llm(folder, **options, max_prefill_chunk=16, max_num_batched_tokens=64) as llm:
        beside = [start(llm.master, prompt, **greedy)[1] for prompt in prompts[:4]]
        batch, cached = llm.embed(prompts), llm.embed(prompts)
        assert [collector.result().outputs[0].token_ids for collector in beside] == text
        stats = llm.master.stats
    for vector, *others in zip(alone, batch, cached, strict=True):
        for other in others:
            if model_impl == "native" and pooling == "last":
                np.testing.assert_array_equal(other.embedding, vector)
            np.testing.assert_allclose(other.embedding, vector, atol=1e-5)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


def test_prompts_share_the_cache_only_where_nothing_of_them_is_needed() -> None:
    prompt = PROMPTS[5]
    for pooling, num_cached in (("last", 56), ("mean", 0)):
        with open_llm(tiny_checkpoint("llama"), pooling=pooling) as llm:
            found = []
            for _ in range(2):
                collector = Collector()
                llm.master.submit(llm.master.pooling.prepare(prompt), collector)
                found.append(collector.result().num_cached_tokens)
        assert found == [0, num_cached]


def test_preempted_prompts_are_pooled_anew() -> None:
    """A pool that holds not all of the running sequences; the sums of chunks before a preemption must not count twice."""
    folder = tiny_checkpoint("llama")
    prompts = [[5 + (index + token) % 200 for token in range(60)] for index in range(12)]
    with open_llm(folder, pooling="mean", enable_prefix_cache=False) as llm:
        alone = [llm.embed(prompt)[0].embedding for prompt in prompts]
    options = {"pooling": "mean", "num_blocks": 30, "max_prefill_chunk": 8, "policy": "unified"}
    with open_llm(folder, **options, max_num_batched_tokens=32, enable_prefix_cache=False) as llm:
        beside = [start(llm.master, [index + 1] * 20, max_tokens=60, ignore_eos=True)[1] for index in range(3)]
        batch = llm.embed(prompts)
        for collector in beside:
            collector.result()
        assert llm.master.stats.num_free_blocks == llm.master.stats.num_blocks
    for vector, other in zip(alone, batch, strict=True):
        np.testing.assert_allclose(other.embedding, vector, atol=1e-5)


def test_a_cancelled_embedding_frees_its_blocks() -> None:
    with open_llm(tiny_checkpoint("llama"), max_prefill_chunk=4, enable_prefix_cache=False) as llm:
        prepared = llm.master.pooling.prepare(PROMPTS[-1])
        collector = Collector()
        llm.master.submit(prepared, collector)
        llm.master.cancel(prepared.request_id)
        assert collector.result().outputs[0].finish_reason == "abort"
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))
        assert llm.master.stats.num_free_blocks == llm.master.stats.num_blocks


def test_what_is_refused(folders: dict[tuple[str, str], Path]) -> None:
    with open_llm(folders["qwen3", "lasttoken"], max_model_len=64) as llm:
        results = llm.embed([[1] * 64, [1] * 65, "", [10**6]])
        assert [result.error_kind for result in results] == [
            None,
            "request_too_long",
            "invalid_request",
            "invalid_request",
        ]
        assert results[1].embedding is None
        for dimensions in (0, 65):
            with pytest.raises(InvalidRequest, match="from 1 to 64"):
                llm.embed("x", dimensions=dimensions)
        generated = llm.generate("x")[0]
        assert generated.error_kind == "invalid_request"
        assert "generates no text" in str(generated.error)
        cut = llm.master.pooling.prepare("abcdefgh", truncate_to=5)
        assert cut.prompt_token_ids == llm.master.tokenizer.encode("abcde", add_special_tokens=True)


@pytest.mark.parametrize(
    ("mode", "modules", "what"),
    [
        ("max_tokens", ("Transformer", "Pooling"), "max_tokens"),
        ("nothing", ("Transformer", "Pooling"), "nothing"),
        ("lasttoken", ("Transformer", "Pooling", "Dense"), "Dense"),
    ],
)
def test_unserved_pooling_is_refused_at_start(tmp_path: Path, mode: str, modules: tuple[str, ...], what: str) -> None:
    folder = embedding_checkpoint(tmp_path / "model", "llama", mode)
    write_modules(folder, mode, modules)
    with pytest.raises(UnsupportedModel, match=what):
        open_llm(folder)


def test_models_whose_tokens_look_ahead_are_refused(tmp_path: Path) -> None:
    folder = embedding_checkpoint(tmp_path / "model", "qwen2", "mean_tokens")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(UnsupportedModel, match="later ones"):
        open_llm(folder, model_impl="python")
