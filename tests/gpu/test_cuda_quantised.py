"""Quantised products on the GPU against float64, and models with quantised matrices, float16 or a cache of 8 bits against the CPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from support.decode_steps import StepMaker
from xllm_framework.model import ModelArgs
from xllm_kernels.quantised_matrix import QuantisedMatrix, from_4_bits, from_8_bits, numbers
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.layers.quantised_linear import QuantisedLinear
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.weights.dummy import fill_dummy_weights

if TYPE_CHECKING:
    from xllm_kernels.cuda.decode import Epilogue

pytestmark = pytest.mark.gpu
KINDS = ("float8", "float8 in blocks", "int8", "int4")
NUM_BLOCKS, BLOCK_SIZE = 400, 16
ARGS = ModelArgs(
    architecture="Qwen3ForCausalLM", model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_heads=16,
    num_kv_heads=8, head_dim=128, has_qk_norm=True, num_layers=2, max_position_embeddings=2048, vocab_size=512,
)  # fmt: skip
EIGHT_BITS = {"num_bits": 8, "symmetric": True, "strategy": "channel"}
SCHEMES = {
    "fp8": {"quant_method": "fp8"},
    "fp8 in blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int8": {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": {"weights": {**EIGHT_BITS, "type": "int"}, "input_activations": {}}},
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def matrix_of(kind: str, n: int, k: int) -> QuantisedMatrix:
    if kind.startswith("float8"):
        values = (torch.randn(n, k, device="cuda") * 60).to(torch.float8_e4m3fn)
        if kind.endswith("blocks"):
            return from_8_bits(values, block_scales=torch.rand(-(-n // 128), -(-k // 128), device="cuda") * 1e-3 + 1e-4)
        return from_8_bits(values, torch.rand(n, device="cuda") * 1e-3 + 1e-4)
    if kind == "int8":
        values = torch.randint(-128, 128, (n, k), device="cuda").to(torch.int8)
        return from_8_bits(values, torch.rand(n, device="cuda") * 1e-3 + 1e-4)
    values = torch.randint(0, 16, (n, k), device="cuda").to(torch.uint8)
    scales = (torch.rand(n, k // 128, device="cuda") * 1e-2 + 1e-3).half()
    return from_4_bits(values, scales, torch.randint(0, 17, scales.shape, device="cuda"))


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def check_product(
    matrix: QuantisedMatrix,
    plain: torch.Tensor,
    x: torch.Tensor,
    epilogue: Epilogue,
    norm: torch.Tensor | None,
    configuration: int,
) -> None:
    """One product against float64, its output poisoned before; `plain` is the matrix in float64."""
    from xllm_kernels.cuda.decode import Epilogue, shared_workspace
    from xllm_kernels.cuda.quantised import quantised_stream

    workspace = shared_workspace(torch.device("cuda", 0))
    n, rows, dtype = matrix.n, len(x), x.dtype
    is_gated = epilogue == Epilogue.SILU_AND_MUL
    bias = None if is_gated else torch.randn(n, device="cuda", dtype=dtype)
    out = torch.full((rows, n // 2 if is_gated else n), float("nan"), device="cuda", dtype=dtype)
    normed = x.double()
    if norm is not None:
        normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + 1e-5) * norm.double()
    expected = normed @ plain.t()
    if bias is not None:
        expected += bias.double()
    if is_gated:
        gate, up = expected.chunk(2, -1)
        expected = torch.nn.functional.silu(gate) * up
    if epilogue == Epilogue.ADD_RESIDUAL:
        out = torch.randn_like(out)
        expected += out.double()
    quantised_stream(
        x, matrix, workspace, out=out, epilogue=epilogue, norm_weight=norm, bias=bias, eps=1e-5,
        configuration=configuration,
    )  # fmt: skip
    assert error_of(out, expected) < 8e-3, (n, matrix.k, rows, epilogue)
    assert not workspace.counters.any()


PRODUCT_SIZES = ((256, 128), (64, 512), (192, 1152), (6144, 4096), (1024, 3072), (2048, 6144), (96, 896))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_few_rows(kind, dtype):
    from xllm_kernels.cuda.decode import Epilogue as Kinds
    from xllm_kernels.cuda.quantised import quantised_stream_norms

    for n, k in PRODUCT_SIZES:
        matrix = matrix_of(kind, n, k)
        plain = numbers(matrix, torch.float64)
        for rows in (1, 2, 5, 8, 9, 16, 27, 32):
            for epilogue in Kinds:
                x = torch.randn(rows, k, device="cuda", dtype=dtype)
                norm = torch.randn(k, device="cuda", dtype=dtype) if quantised_stream_norms(rows, k) else None
                check_product(matrix, plain, x, epilogue, norm, 0)


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_products_straight_to_registers(kind, dtype, depth):
    from xllm_kernels.cuda.decode import Epilogue as Kinds

    for n, k in (*PRODUCT_SIZES, (16, 128), (4096, 12288)):
        matrix = matrix_of(kind, n, k)
        plain = numbers(matrix, torch.float64)
        for rows in (1, 2, 4) if k > 4096 else (1, 2, 5, 8):
            for epilogue in Kinds:
                x = torch.randn(rows, k, device="cuda", dtype=dtype)
                for norm in [None] if rows > 1 else [None, torch.randn(k, device="cuda", dtype=dtype)]:
                    check_product(matrix, plain, x, epilogue, norm, depth)


def test_the_smallest_8_bit_floats_count():
    """Numbers below the normal ones of e4m3 alone, which a shortcut would lose."""
    from xllm_kernels.cuda.decode import shared_workspace
    from xllm_kernels.cuda.quantised import quantised_stream

    codes = torch.randint(0, 8, (256, 512), device="cuda", dtype=torch.uint8) | (
        torch.randint(0, 2, (256, 512), device="cuda", dtype=torch.uint8) << 7
    )
    matrix = from_8_bits(codes.view(torch.float8_e4m3fn))
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(4, 512, device="cuda", dtype=dtype)
        out = torch.full((4, 256), float("nan"), device="cuda", dtype=dtype)
        quantised_stream(x, matrix, shared_workspace(torch.device("cuda", 0)), out=out)
        assert error_of(out, x.double() @ numbers(matrix, torch.float64).t()) < 8e-3


@pytest.mark.parametrize("kind", KINDS)
def test_products_in_triton(kind):
    from xllm_kernels.triton.quantised_product import plain_numbers, quantised_product

    matrix = matrix_of(kind, 320, 1152)
    plain = numbers(matrix, torch.float64)
    assert error_of(plain_numbers(matrix, torch.bfloat16), plain) < 4e-3
    for rows in (1, 20, 50, 130):
        x = torch.randn(rows, 1152, device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(320, device="cuda", dtype=torch.bfloat16)
        assert error_of(quantised_product(x, matrix, bias), x.double() @ plain.t() + bias.double()) < 5e-3


@pytest.mark.parametrize("kind", ["float8", "float8 in blocks", "int8"])
def test_many_rows_multiply_in_8_bits(kind):
    """Against the same inputs quantised in the same way."""
    from xllm_kernels.quantised_matrix import WeightKind
    from xllm_kernels.triton.quantised_product import quantise_rows
    from xllm_runtime.layers.quantised_products import CUDAProducts

    matrix = matrix_of(kind, 512, 1024)
    x = torch.randn(200, 1024, device="cuda", dtype=torch.bfloat16) * 3
    group = 128 if kind.endswith("blocks") else 0
    values, scales = quantise_rows(x, WeightKind.INT8 if kind == "int8" else WeightKind.FLOAT8, group)
    inputs = values.double() * scales.double().repeat_interleave(group or 1024, 1)
    assert error_of(inputs, x) < (0.012 if kind == "int8" else 0.03)
    products = CUDAProducts(torch.device("cuda", 0), quantises_input=True)
    found = products.multiply(x, matrix, None)
    assert error_of(found, inputs @ numbers(matrix, torch.float64).t()) < 5e-3


def build(args: ModelArgs, device: str, dtype: torch.dtype, **options) -> LlamaForCausalLM:
    with torch.device(device):
        model = LlamaForCausalLM(args, dtype, **options)
        model.bind_kv_cache(
            [
                tuple(torch.zeros(NUM_BLOCKS, BLOCK_SIZE, s.num_kv_heads, s.head_dim, dtype=s.dtype) for _ in "kv")
                for s in model.kv_cache_shapes()
            ]
        )
    return model


def pair_of(scheme: dict | None, dtype: torch.dtype, **options) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """(model on the GPU, the same in float32 on the CPU)."""
    raw = {} if scheme is None else {"quantization_config": scheme}
    fast = build(dataclasses.replace(ARGS, raw=raw), "cuda", dtype, **options)
    truth = build(ARGS, "cpu", torch.float32)
    fill_dummy_weights(fast)
    torch.nn.init.normal_(fast.embed_tokens.weight)
    others = dict(truth.named_modules())
    for name, part in fast.named_modules():
        if isinstance(part, QuantisedLinear):
            assert part.matrix is not None
            others[name].weight.data.copy_(numbers(part.matrix))
        elif isinstance(getattr(part, "weight", None), torch.nn.Parameter):
            if part.weight.ndim == 1:
                part.weight.data.normal_(1, 0.2)
            others[name].weight.data.copy_(part.weight)
    return fast, truth


def logits_of(executor, model, forward_input):
    with torch.inference_mode():
        hidden = executor.forward(forward_input)
        return model.compute_logits(hidden[torch.from_numpy(forward_input.sample_rows).to(hidden.device)]).cpu()


def run_both(fast: LlamaForCausalLM, truth: LlamaForCausalLM, num_sequences: int) -> tuple[float, float]:
    """Return the errors of a prompt's logits and of decoded ones, from graphs where there are some."""
    from xllm_runtime.executor.cuda_graph import CUDAGraphExecutor

    random = np.random.default_rng(num_sequences)
    maker, plain = StepMaker(NUM_BLOCKS, BLOCK_SIZE), EagerExecutor(truth, torch.device("cpu"))
    graphs = CUDAGraphExecutor(fast, torch.device("cuda", 0), 64)
    lengths = random.integers(1, 150, num_sequences).tolist()
    prompts = maker.step([(i, random.integers(0, 512, n).tolist()) for i, n in enumerate(lengths)])
    prompt_error = error_of(logits_of(graphs, fast, prompts), logits_of(plain, truth, prompts))
    errors = []
    for _ in range(3):
        step = maker.step([(i, [int(random.integers(0, 512))]) for i in range(num_sequences)])
        decoded = graphs.decode(step)
        assert decoded is not None
        logits = decoded.logits().cpu()
        started = decoded.start(step.sampling)
        assert started is not None
        expected = logits_of(plain, truth, step)
        errors.append(error_of(logits, expected))
        chosen = torch.from_numpy(np.asarray(started.wait().token_ids, np.int64))
        assert torch.equal(chosen, logits.argmax(-1))
    assert graphs.num_graphs >= 1
    return prompt_error, max(errors)


@pytest.mark.parametrize("num_sequences", [1, 5, 12, 40])
@pytest.mark.parametrize("form", SCHEMES)
def test_models_with_quantised_matrices(form, num_sequences):
    fast, truth = pair_of(SCHEMES[form], torch.bfloat16)
    prompt_error, decode_error = run_both(fast, truth, num_sequences)
    # Prompts, and many rows, quantise their inputs where the checkpoint says so; KV of prompts carries that on.
    loose = {"fp8": 0.06, "fp8 in blocks": 0.06, "int8": 0.04, "awq": 0.04}[form]
    print(form, num_sequences, f"{prompt_error:.2e} {decode_error:.2e}")
    assert prompt_error < loose
    assert decode_error < loose


@pytest.mark.parametrize("num_sequences", [1, 5, 20, 40])
@pytest.mark.parametrize("scheme", [None, SCHEMES["awq"]], ids=["plain", "awq"])
def test_models_in_float16(scheme, num_sequences):
    prompt_error, decode_error = run_both(*pair_of(scheme, torch.float16), num_sequences)
    print("float16", num_sequences, f"{prompt_error:.2e} {decode_error:.2e}")
    assert prompt_error < 3e-3
    assert decode_error < 3e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_with_a_cache_of_8_bits(dtype):
    prompt_error, decode_error = run_both(*pair_of(None, dtype, kv_dtype=torch.float8_e4m3fn), 6)
    print("fp8 cache", dtype, f"{prompt_error:.2e} {decode_error:.2e}")
    assert prompt_error < 1.2e-2
    assert decode_error < 0.06


@pytest.mark.parametrize("kind", ["float8 in blocks", "int8"])
def test_experts(kind):
    from xllm_kernels.cuda import experts
    from xllm_kernels.triton.quantised_experts import run_quantised_experts

    num_experts, hidden, inner = 32, 512, 256
    gate_up, down = matrix_of(kind, num_experts * 2 * inner, hidden), matrix_of(kind, num_experts * hidden, inner)
    halves = numbers(gate_up, torch.float64).view(num_experts, 2, inner, hidden)
    outer = numbers(down, torch.float64).view(num_experts, hidden, inner)
    for tokens in (1, 7, 60):
        x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        routing = experts.route(torch.randn(tokens, num_experts, device="cuda").bfloat16(), 4, renormalises=True)
        found = run_quantised_experts(x, gate_up, down, routing.token_of_row, routing.starts)
        expected = torch.empty(tokens * 4, hidden, device="cuda", dtype=torch.float64)
        starts = routing.starts.tolist()
        for expert in range(num_experts):
            rows = slice(starts[expert], starts[expert + 1])
            inputs = x[routing.token_of_row[rows].long()].double()
            gate, up = inputs @ halves[expert, 0].t(), inputs @ halves[expert, 1].t()
            expected[rows] = (torch.nn.functional.silu(gate) * up) @ outer[expert].t()
        assert error_of(found, expected) < 8e-3
