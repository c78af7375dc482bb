"""Products by the fastest of the library's algorithms: the same numbers whichever it takes, and nothing waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from xllm_framework.model import ModelArgs
from xllm_kernels.cuda import products
from xllm_kernels.cuda.cublaslt import LibraryError, Product
from xllm_kernels.cuda.products import MeasuredProducts
from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.layers import products as layer_products
from xllm_runtime.layers.products import plain_product
from xllm_runtime.models.llm.llama import LlamaForCausalLM

pytestmark = pytest.mark.gpu
CALLS = 100
"""More than any trial takes."""


def matrices(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(m + n + k)
    return torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype) * k**-0.5


def settled(x: torch.Tensor, weight: torch.Tensor) -> MeasuredProducts:
    """Return an object that has chosen for such products."""
    measured = MeasuredProducts()
    for _ in range(CALLS):
        measured(x, weight)
    torch.cuda.synchronize()
    measured(x, weight)
    return measured


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(2048, 1536, 1024), (1500, 640, 2048), (1024, 4096, 512), (3001, 2056, 968)])
def test_all_algorithms_give_the_same_bits(m, n, k, dtype):
    x, weight = matrices(m, n, k, dtype)
    measured, expected = MeasuredProducts(), x.double() @ weight.double().T
    poison = torch.full((m, n), torch.nan, dtype=dtype, device="cuda")
    del poison
    results = [measured(x, weight) for _ in range(CALLS)]
    assert (results[0].double() - expected).norm() / expected.norm() < (1e-2 if dtype == torch.bfloat16 else 1e-3)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.cuda.synchronize()
    (kind,) = measured._kinds.values()
    assert torch.equal(measured(x, weight), results[0])
    assert len(kind.algorithms) > 1
    assert kind.trial.chosen is not None


def test_other_rows_of_a_kind_are_served_by_what_was_chosen():
    x, weight = matrices(2047, 3072, 1024)
    measured = settled(x, weight)
    for m in (1024, 1025, 1531, 2046):
        assert torch.equal(measured(x[:m], weight), F.linear(x[:m], weight))
    assert len(measured.choices()) == 1
    measured(x[:512], weight)
    assert len(measured.choices()) == 2


@pytest.mark.parametrize("is_settled", [False, True])
def test_products_are_captured(is_settled):
    x, weight = matrices(1024, 2048, 1024)
    measured = settled(x, weight) if is_settled else MeasuredProducts()
    expected = measured(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = measured(x, weight)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)


def test_what_the_library_does_not_take_is_left_to_torch():
    x, weight = matrices(2048, 1024, 1024)
    measured = MeasuredProducts()
    for a, b in [
        (x[:, :512], weight[:, :512]),
        (x.float(), weight.float()),
        (x[:, :508].contiguous(), weight[:, :508].contiguous()),
    ]:
        assert torch.equal(measured(a, b), F.linear(a, b))
    assert not measured.choices()


def test_a_refusing_library_is_left(monkeypatch, caplog):
    def refuse(*_):
        raise LibraryError("cublasLtMatmul failed with status 15")

    x, weight = matrices(1024, 2048, 1024)
    measured = MeasuredProducts()
    expected = measured(x, weight)
    monkeypatch.setattr(Product, "multiply", refuse)
    assert torch.equal(measured(x, weight), expected)
    assert "status 15" in caplog.text
    monkeypatch.undo()
    assert torch.equal(measured(x, weight), expected)
    monkeypatch.setattr(products, "Product", refuse)
    assert torch.equal(MeasuredProducts()(x, weight), expected)


def test_memory_that_runs_out_is_told(monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError

    x, weight = matrices(1024, 2048, 1024)
    measured = MeasuredProducts()
    expected = measured(x, weight)
    with monkeypatch.context() as patch:
        patch.setattr(Product, "multiply", run_out)
        with pytest.raises(torch.OutOfMemoryError):
            measured(x, weight)
    assert torch.equal(measured(x, weight), expected)
    assert None not in measured._kinds.values()


def test_nothing_is_waited_for():
    x, weight = matrices(1024, 1024, 1024)
    settled(x, weight)  # kernels are loaded, for which the device may be waited for
    measured = MeasuredProducts()
    torch.cuda._sleep(2_000_000_000)
    for _ in range(CALLS):
        measured(x, weight)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_threads_with_streams_of_their_own():
    measured = MeasuredProducts()

    def work(rows: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            x, weight = matrices(rows, 2048, 1024)
            expected = F.linear(x, weight)
            return all(torch.equal(measured(x, weight), expected) for _ in range(CALLS))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [1024, 1100, 1999, 2047]))


def test_products_of_few_operations_are_left_to_torch(monkeypatch):
    measured = MeasuredProducts()
    monkeypatch.setattr(layer_products, "measured_product", lambda: measured)
    x, weight = matrices(1024, 4096, 2048)
    assert 2 * len(x) * weight.numel() < layer_products.MEASURED_OPERATIONS
    assert torch.equal(plain_product(x, weight), F.linear(x, weight))
    assert not measured.choices()
    x, weight = matrices(8192, 4096, 2048)
    assert torch.equal(plain_product(x, weight), F.linear(x, weight))
    assert len(measured.choices()) == 1


@pytest.mark.parametrize("has_qkv_bias", [False, True])
@torch.inference_mode()
def test_a_model_gives_the_same_bits_with_and_without(has_qkv_bias, monkeypatch):
    num_tokens, num_blocks = 4096, 257
    args = ModelArgs(
        architecture="Qwen3ForCausalLM", model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_layers=2, num_heads=16,
        num_kv_heads=8, head_dim=128, has_qk_norm=True, has_qkv_bias=has_qkv_bias, max_position_embeddings=num_tokens, vocab_size=512,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(args, torch.bfloat16)
        for parameter in model.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1)
        shapes = [(num_blocks, 16, s.num_kv_heads, s.head_dim) for s in model.kv_cache_shapes()]
        model.bind_kv_cache([tuple(torch.zeros(shape, dtype=torch.bfloat16) for _ in "kv") for shape in shapes])
        token_ids, positions = torch.randint(0, 500, (num_tokens,)), torch.arange(num_tokens)
        tables = torch.arange(1, num_blocks, dtype=torch.int32)[None]
        starts, lengths = [torch.tensor(numbers, dtype=torch.int32) for numbers in ([0, num_tokens], [num_tokens])]

    def hidden() -> torch.Tensor:
        metadata = AttentionMetadata(positions + 16, tables, starts, lengths, num_tokens)
        return model.forward(token_ids.clone(), positions.clone(), metadata).clone()

    measured = MeasuredProducts()
    monkeypatch.setattr(layer_products, "measured_product", lambda: measured)
    monkeypatch.setattr(layer_products, "MEASURED_OPERATIONS", float("inf"))
    expected = hidden()
    assert not measured.choices()
    monkeypatch.setattr(layer_products, "MEASURED_OPERATIONS", 0)
    assert all(torch.equal(hidden(), expected) for _ in range(CALLS // 2))
    assert len(measured.choices()) == (3 if has_qkv_bias else 4)
