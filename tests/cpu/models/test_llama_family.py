"""Llama, Qwen2, Qwen3, Qwen3-MoE and Mistral against transformers in float32, over every way to cut tokens into steps."""

from __future__ import annotations

import pytest
import torch

from support.loaded_models import load_tiny
from support.paged_runner import PagedRunner
from support.reference_logits import reference_logits
from support.tiny_checkpoints import NUM_BYTE_TOKENS, tiny_checkpoint

TOLERANCE = 1e-4
EXPERTS = {
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
MODELS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-no-gqa": ("llama", {"num_key_value_heads": 4}),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "llama-odd-heads": (
        "llama",
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3-window": (
        "qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
    ),
    "qwen3-moe": ("qwen3_moe", EXPERTS),
    "qwen3-moe-every-other-layer": (
        "qwen3_moe",
        {**EXPERTS, "decoder_sparse_step": 2, "norm_topk_prob": False, "num_experts_per_tok": 1},
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral-window": ("mistral", {"sliding_window": 9, "head_dim": 16}),
}
IMPLEMENTATIONS = {
    "kernels": {"attention_backend": "paged_cpu"},
    "torch": {"attention_backend": "sdpa", "operations": "torch"},
}


def tokens_of(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, NUM_BYTE_TOKENS, (count,), generator=generator).tolist()


@pytest.fixture(params=MODELS)
def checkpoint(request):
    model_type, overrides = MODELS[request.param]
    return tiny_checkpoint(model_type, **overrides)


@pytest.fixture(params=IMPLEMENTATIONS)
def options(request):
    return IMPLEMENTATIONS[request.param]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    assert expected.std() > 0.5, "logits that hardly differ would prove nothing"
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def test_chunks_of_any_size_give_the_logits_of_transformers(checkpoint, options):
    tokens = tokens_of(1, 53)
    expected = reference_logits(checkpoint, tokens)
    runner = PagedRunner(load_tiny(checkpoint, **options))
    for sequence, chunk in enumerate((len(tokens), 1, 16, 17)):
        assert_close(runner.run_chunked(sequence, tokens, chunk), expected)


def test_mixed_batches_give_the_logits_of_transformers(checkpoint, options):
    """Prefills, later chunks and decodes of five sequences in the same steps."""
    lengths = (40, 3, 1, 33, 18)
    tokens = [tokens_of(sequence, length) for sequence, length in enumerate(lengths)]
    steps = [
        [(0, 16)],
        [(0, 16), (1, 2)],
        [(1, 1), (2, 1), (3, 17), (0, 1)],
        [(0, 1), (3, 1), (4, 16)],
        [(4, 1), (0, 6), (3, 15)],
        [(4, 1)],
    ]
    runner = PagedRunner(load_tiny(checkpoint, **options))
    done = [0] * len(lengths)
    logits: list[list[torch.Tensor]] = [[] for _ in lengths]
    for step in steps:
        batch = [(s, tokens[s][done[s] : done[s] + count]) for s, count in step]
        for (sequence, new), rows in zip(batch, runner.step(batch), strict=True):
            logits[sequence].append(rows)
            done[sequence] += len(new)
    assert done == list(lengths)
    for sequence_tokens, rows in zip(tokens, logits, strict=True):
        assert_close(torch.cat(rows), reference_logits(checkpoint, sequence_tokens))


def test_greedy_decoding_gives_the_tokens_of_transformers(checkpoint, options):
    prompt = tokens_of(2, 21)
    runner = PagedRunner(load_tiny(checkpoint, **options))
    tokens = list(prompt)
    rows = runner.step([(0, prompt)])[0]
    for _ in range(32):
        tokens.append(int(rows[-1].argmax()))
        rows = runner.step([(0, tokens[-1:])])[0]
    expected = reference_logits(checkpoint, tokens)[len(prompt) - 1 : -1]
    assert tokens[len(prompt) :] == expected.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_stay_near_float32(dtype):
    checkpoint = tiny_checkpoint("qwen3", head_dim=32)
    tokens = tokens_of(3, 40)
    from support.loaded_models import model_files
    from xllm_framework.model import load_model_args
    from xllm_runtime.models.llm.llama import LlamaForCausalLM
    from xllm_runtime.weights import load_weights

    args = load_model_args(model_files(checkpoint))
    model = LlamaForCausalLM(args, dtype)
    model.load_weights(load_weights(model_files(checkpoint), args, dtype))
    assert all(shape.dtype == dtype for shape in model.kv_cache_shapes())
    logits = PagedRunner(model).run_chunked(0, tokens, 16)
    expected = reference_logits(checkpoint, tokens)
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().mean() < 0.05 * expected.std()
