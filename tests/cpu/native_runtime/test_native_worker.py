"""The native worker against the worker on torch: logits, every kind of output, its options, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.batch_driver import BatchDriver
from support.loaded_models import load_tiny, model_files
from support.paged_runner import PagedRunner
from support.tiny_checkpoints import NUM_BYTE_TOKENS, tiny_checkpoint
from xllm_framework.config import LoadConfig, ModelConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig, ModelLoadError, UnsupportedModel
from xllm_framework.model import load_model_args, resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime.engine import LLMEngine
from xllm_runtime.models import third_party
from xllm_runtime.models.native import compute_dtype, explain_native, weight_format
from xllm_runtime.weights.safetensors_layout import MappedSafetensors
from xllm_runtime.worker.native import NativeWorker
from xllm_runtime.worker.selection import start_worker

BLOCK_SIZE = 16
NUM_TOKENS = 70
VARIANTS = {
    "llama": {},
    "llama-untied": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 20},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "llama-yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
}


def checkpoint(variant: str) -> Path:
    return tiny_checkpoint(variant.partition("-")[0], **VARIANTS[variant])


def worker_of(folder: Path | str, **options: object) -> NativeWorker:
    config = XLLMConfig.from_flat({"device": "cpu", "threads": 1, "num_blocks": 40, **options})
    files = resolve_model(str(folder), LoadConfig())
    worker = start_worker(config, files, load_model_args(files))
    assert isinstance(worker, NativeWorker)
    worker.allocate_kv_cache(40, BLOCK_SIZE)
    return worker


def engine_of(folder: Path, **options: object) -> LLMEngine:
    config = XLLMConfig.from_flat({"model": str(folder), "device": "cpu", "threads": 1, "num_blocks": 60, **options})
    files = model_files(folder)
    return LLMEngine(config, files, load_model_args(files))


def logits_of(worker: NativeWorker, tokens: list[int], chunk: int) -> np.ndarray:
    """Return the logits of every token of one sequence, fed `chunk` at a time."""
    blocks = np.arange(1, 9, dtype=np.int32)[::-1].copy()
    rows = []
    for start in range(0, len(tokens), chunk):
        positions = np.arange(start, min(start + chunk, len(tokens)), dtype=np.int32)
        slots = blocks[positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        rows.append(
            worker._decoder.forward(
                np.array(tokens, np.int32)[positions],
                positions,
                slots,
                np.array([0, len(positions)], np.int32),
                positions[-1:] + 1,
                blocks[None],
                np.arange(len(positions)),
            )
        )
    return np.concatenate(rows)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_python_implementation(variant):
    tokens = np.random.default_rng(4).integers(0, NUM_BYTE_TOKENS, NUM_TOKENS).tolist()
    folder = checkpoint(variant)
    expected = PagedRunner(load_tiny(folder, "python")).run_chunked(0, tokens, NUM_TOKENS).numpy()
    worker = worker_of(folder, dtype="float32")
    assert (worker.model_impl, worker.dtype) == ("native", "float32")
    whole = logits_of(worker, tokens, NUM_TOKENS)
    np.testing.assert_allclose(whole, expected, atol=1e-4, rtol=0)
    for chunk in (1, 17):
        assert np.array_equal(logits_of(worker, tokens, chunk), whole), "a chunk changes bits"


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_every_kind_of_row_equals_the_worker_on_torch(model_type):
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2),
        SamplingParams(temperature=0.9, top_p=0.8, top_k=30, logprobs=0),
        SamplingParams(temperature=1.0, min_p=0.05, repetition_penalty=1.3, frequency_penalty=0.5),
        SamplingParams(temperature=0.0, logit_bias={7: 50.0}, min_tokens=4),
    ]
    outputs, answers = [], []
    for model_impl in ("native", "python"):
        driver = BatchDriver(engine_of(tiny_checkpoint(model_type), model_impl=model_impl))
        requests = [driver.request(range(20 + row), params[row], seed=row) for row in range(len(params))]
        outputs.append(driver.step(*((request, 0) for request in requests)))
        answers.append(driver.generate(requests, 12))
    ours, theirs = outputs
    assert answers[0] == answers[1]
    assert ours.top_ids.tolist() == theirs.top_ids.tolist()
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
    np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-4)
    assert ours.prompt_logprobs.keys() == theirs.prompt_logprobs.keys() == {1}
    for mine, other in zip(ours.prompt_logprobs[1], theirs.prompt_logprobs[1], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "expected_format", "expected_dtype"),
    [
        ({}, "auto", "float32"),
        ({"dtype": "float32"}, "f32", "float32"),
        ({"dtype": "bfloat16"}, "bf16", "bfloat16"),
        ({"quantization": "none"}, "f32", "float32"),
        ({"quantization": "none", "dtype": "bfloat16"}, "bf16", "bfloat16"),
        ({"quantization": "bf16"}, "bf16", "float32"),
        ({"quantization": "int8"}, "int8", "float32"),
        ({"quantization": "int4", "dtype": "bfloat16"}, "int4", "bfloat16"),
    ],
)
def test_options_decide_how_weights_are_kept(options, expected_format, expected_dtype):
    files = model_files(tiny_checkpoint("llama"))
    args, config = load_model_args(files), ModelConfig(**options)
    assert weight_format(args, config, files) == expected_format
    assert compute_dtype(args, config, files) == expected_dtype


def test_smaller_formats_take_less_and_stay_near():
    tokens = list(range(40))
    folder = tiny_checkpoint("llama")
    exact = logits_of(worker_of(folder, quantization="none"), tokens, 40)
    sizes = []
    for quantization, tolerance in (("none", 0.0), ("bf16", 0.02), ("int8", 0.05), ("int4", 0.5)):
        worker = worker_of(folder, quantization=quantization)
        error = np.linalg.norm(logits_of(worker, tokens, 40) - exact) / np.linalg.norm(exact)
        assert error <= tolerance
        sizes.append(worker._decoder.num_weight_bytes)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_random_weights_need_no_checkpoint(tmp_path):
    shutil.copy(tiny_checkpoint("qwen3") / "config.json", tmp_path)
    worker = worker_of(tmp_path, load_format="dummy")
    logits = logits_of(worker, [1, 2, 3], 3)
    assert np.isfinite(logits).all()
    assert np.array_equal(logits, logits_of(worker_of(tmp_path, load_format="dummy"), [1, 2, 3], 3))


def test_what_it_does_not_compute_is_told(monkeypatch):
    files = model_files(tiny_checkpoint("llama"))
    args = load_model_args(files)
    assert explain_native(args, ModelConfig(), files) == []
    told = explain_native(
        dataclasses.replace(args, architecture="Other", activation="gelu"), ModelConfig(dtype="float16")
    )
    assert [reason for reason in told if "'Other' is not one of" in reason]
    assert "activation 'gelu' is not silu" in told
    assert "it does not compute in float16" in told
    monkeypatch.setattr("xllm_runtime.models.native.third_party_models", lambda: {"LlamaForCausalLM": "x:Y"})
    assert third_party.third_party_models is not None
    assert explain_native(args, ModelConfig(), files) == [
        "an installed package brings its own model of that architecture"
    ]
    assert explain_native(args, ModelConfig(model_impl="native"), files) == []


def test_asking_for_it_elsewhere_is_an_error():
    files = model_files(tiny_checkpoint("gpt2"))
    config = XLLMConfig.from_flat({"model_impl": "native", "device": "cpu"})
    with pytest.raises(UnsupportedModel, match=r"native implementation does not serve gpt2-.*'GPT2LMHeadModel'"):
        start_worker(config, files, load_model_args(files))


def test_a_broken_checkpoint_is_named(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ModelLoadError, match=r"model: tensor '.*down_proj\.weight' has shape .*96.*128"):
        worker_of(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(ModelLoadError, match=r"lack 'model\.layers\.3\."):
        worker_of(folder)


def test_more_threads_than_there_can_be_are_refused():
    with pytest.raises(InvalidConfig, match="threads must be"):
        worker_of(tiny_checkpoint("llama"), threads=2000)


def test_raw_tensors_are_the_bytes_of_the_file():
    file = MappedSafetensors(tiny_checkpoint("llama") / "model.safetensors")
    tensor = file.raw("model.norm.weight")
    assert (tensor.kind, tensor.shape, tensor.raw.nbytes, tensor.permuted_heads) == ("F32", (64,), 256, 0)
    values = (
        tensor.raw.view(np.float32) if tensor.raw.ctypes.data % 4 == 0 else np.frombuffer(tensor.raw.tobytes(), "f4")
    )
    assert ((values >= 0.5) & (values <= 1.5)).all()
