"""Tiny models on the GPU in bfloat16 against the same weights on the CPU in float32, eager and from graphs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from support.decode_steps import StepMaker
from xllm_framework.model import ModelArgs
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.llm.qwen3_moe import Qwen3MoeForCausalLM

pytestmark = pytest.mark.gpu
NUM_BLOCKS, BLOCK_SIZE, TOLERANCE = 400, 16, 1e-2
SHAPE = {"num_layers": 2, "max_position_embeddings": 2048, "vocab_size": 512}
ARGS = {
    "llama": ModelArgs(
        architecture="LlamaForCausalLM", model_type="llama", hidden_size=512, intermediate_size=1024, num_heads=8,
        num_kv_heads=2, head_dim=64, **SHAPE,
    ),
    "qwen2": ModelArgs(
        architecture="Qwen2ForCausalLM", model_type="qwen2", hidden_size=896, intermediate_size=1216, num_heads=14,
        num_kv_heads=2, head_dim=64, has_qkv_bias=True, has_tied_embeddings=True, **SHAPE,
    ),
    "qwen3": ModelArgs(
        architecture="Qwen3ForCausalLM", model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_heads=16,
        num_kv_heads=8, head_dim=128, has_qk_norm=True, **SHAPE,
    ),
    "gates": ModelArgs(  # 128 tiles of 192 rows of gate and up, which fill an H100 or H200
        architecture="Qwen3ForCausalLM", model_type="qwen3", hidden_size=256, intermediate_size=12288, num_heads=4,
        num_kv_heads=2, head_dim=64, has_qk_norm=True, **SHAPE,
    ),
    "qwen3_moe": ModelArgs(
        architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", hidden_size=512, intermediate_size=640, num_heads=8,
        num_kv_heads=2, head_dim=128, has_qk_norm=True,
        raw={"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True},
        **SHAPE,
    ),
    "odd": ModelArgs(  # no product streams: the hidden size is no multiple of 64
        architecture="LlamaForCausalLM", model_type="llama", hidden_size=200, intermediate_size=328, num_heads=4,
        num_kv_heads=4, head_dim=64, **SHAPE,
    ),
}  # fmt: skip


def build(args: ModelArgs, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    model_class = Qwen3MoeForCausalLM if args.model_type == "qwen3_moe" else LlamaForCausalLM
    with torch.device(device):
        model = model_class(args, dtype)
        model.bind_kv_cache(
            [
                tuple(torch.zeros(NUM_BLOCKS, BLOCK_SIZE, s.num_kv_heads, s.head_dim, dtype=s.dtype) for _ in "kv")
                for s in model.kv_cache_shapes()
            ]
        )
    return model


@pytest.fixture(params=ARGS)
def pair(request):
    """(model on the GPU, the same on the CPU)."""
    args = ARGS[request.param]
    fast, truth = build(args, "cuda", torch.bfloat16), build(args, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    others = dict(truth.named_parameters())
    for name, parameter in fast.named_parameters():
        deviation = (
            1.0 if name.startswith("embed") else 0.2 if name.endswith(".gate") else 0.02 if parameter.ndim > 1 else 0.2
        )
        values = torch.randn(parameter.shape, generator=generator) * deviation
        if parameter.ndim == 1 and not name.endswith("bias"):
            values += 1
        parameter.data.copy_(values)
        others[name].data.copy_(parameter.data)
    return fast, truth


def graph_executor(model: LlamaForCausalLM):
    from xllm_runtime.executor.cuda_graph import CUDAGraphExecutor

    return CUDAGraphExecutor(model, torch.device("cuda", 0), 64)


def logits_of(executor, model, forward_input):
    with torch.inference_mode():
        hidden = executor.forward(forward_input)
        return model.compute_logits(hidden[torch.from_numpy(forward_input.sample_rows).to(hidden.device)]).cpu()


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(
    ("pair", "num_sequences"), [*itertools.product(ARGS, (1, 3, 8, 20)), ("gates", 40)], indirect=["pair"]
)
def test_prompts_and_decodes(pair, num_sequences):
    fast, truth = pair
    random = np.random.default_rng(num_sequences)
    maker, graphs, plain = (
        StepMaker(NUM_BLOCKS, BLOCK_SIZE),
        graph_executor(fast),
        EagerExecutor(truth, torch.device("cpu")),
    )
    lengths = random.integers(1, 150, num_sequences)
    lengths[0] = 130
    prompts = maker.step([(i, random.integers(0, 512, n).tolist()) for i, n in enumerate(lengths.tolist())])
    assert error_of(logits_of(graphs, fast, prompts), logits_of(plain, truth, prompts)) < TOLERANCE
    for _ in range(3):  # the first is computed eagerly, the others come from the graph
        step = maker.step([(i, [int(random.integers(0, 512))]) for i in range(num_sequences)])
        decoded = graphs.decode(step)
        assert decoded is not None
        logits = decoded.logits().cpu()
        started = decoded.start(step.sampling)
        assert started is not None
        assert error_of(logits, logits_of(plain, truth, step)) < TOLERANCE
        assert started.wait().token_ids.tolist() == logits.numpy().argmax(-1).tolist()
        assert error_of(logits_of(graphs, fast, step), logits) < TOLERANCE  # the eager way, on the same KV


def test_chunks_beside_decodes(pair):
    fast, truth = pair
    random = np.random.default_rng(1)
    maker, graphs, plain = (
        StepMaker(NUM_BLOCKS, BLOCK_SIZE),
        graph_executor(fast),
        EagerExecutor(truth, torch.device("cpu")),
    )

    def tokens(count):
        return random.integers(0, 512, count).tolist()

    for batch in (
        [(0, tokens(40)), (1, tokens(70))],
        [(0, tokens(1)), (2, tokens(33)), (1, tokens(25))],
        [(2, tokens(90)), (0, tokens(1)), (1, tokens(1)), (3, tokens(1))],
        [(0, tokens(1)), (2, tokens(20)), (1, tokens(1)), (4, tokens(40)), (3, tokens(1))],  # neither lie together
        [(0, tokens(1)), (1, tokens(1)), (5, tokens(17)), (6, tokens(30))],  # prompts whose keys are all new
    ):
        step = maker.step(batch)
        expected = logits_of(plain, truth, step)
        decoded = graphs.decode(step)
        assert decoded is not None
        started, logits = decoded.start(step.sampling), decoded.logits().cpu()
        assert started is not None
        assert error_of(logits, expected) < TOLERANCE
        assert started.wait().token_ids.tolist() == logits.numpy().argmax(-1).tolist()
        assert error_of(logits_of(graphs, fast, step), expected) < TOLERANCE


def test_long_prompts_end_with_the_sampled_rows(pair):
    fast, truth = pair
    random = np.random.default_rng(2)
    maker, eager, plain = (
        StepMaker(NUM_BLOCKS, BLOCK_SIZE),
        EagerExecutor(fast, torch.device("cuda", 0)),
        EagerExecutor(truth, torch.device("cpu")),
    )
    for counts in ((400, 300), (1, 700)):
        step = maker.step([(row, random.integers(0, 512, count).tolist()) for row, count in enumerate(counts)])
        assert error_of(logits_of(eager, fast, step), logits_of(plain, truth, step)) < TOLERANCE


@pytest.mark.parametrize("num_sequences", [1, 2, 7, 8, 17, 40])
def test_a_replayed_graph_gives_the_bits_of_the_eager_step(pair, num_sequences):
    fast, _ = pair
    random = np.random.default_rng(2)
    maker, graphs = StepMaker(NUM_BLOCKS, BLOCK_SIZE), graph_executor(fast)
    prompts = [
        (i, random.integers(0, 512, int(n)).tolist()) for i, n in enumerate(random.integers(1, 90, num_sequences))
    ]
    logits_of(graphs, fast, maker.step(prompts))
    step = maker.step([(i, [i]) for i in range(num_sequences)])
    runs = []
    for _ in range(4):
        decoded = graphs.decode(step)
        assert decoded is not None
        started = decoded.start(step.sampling)
        assert started is not None
        runs.append((decoded.logits().clone(), started.wait().token_ids.tolist()))
    assert graphs.num_graphs == 1
    assert all(torch.equal(logits, runs[0][0]) and ids == runs[0][1] for logits, ids in runs[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("num_rows", "fused"), [(32, False), (33, True), (128, True), (129, False)])
def test_gates_of_many_rows_are_fused_where_that_is_faster(dtype, num_rows, fused):
    from xllm_kernels.cuda.decode import most_gated_rows
    from xllm_runtime.models.llm.feed_forward_cuda import fuses_gates, gated_product

    gate_up = build(ARGS["gates"], "cuda", dtype).layers[0].mlp.gate_up_proj
    assert fuses_gates(gate_up, num_rows) is (fused and most_gated_rows(24576, 256) > 0)
    assert not fuses_gates(build(ARGS["qwen3"], "cuda", dtype).layers[0].mlp.gate_up_proj, num_rows)
    if fused:
        torch.manual_seed(0)
        gate_up.weight.data.normal_(0, 0.02)
        x = torch.randn(num_rows, 256, device="cuda").to(dtype)
        gate, up = (x.double() @ gate_up.weight.double().t()).chunk(2, -1)
        assert error_of(gated_product(x, gate_up), torch.nn.functional.silu(gate) * up) < TOLERANCE


def test_a_worker_on_the_gpu(tmp_path):
    from xllm_framework.config import XLLMConfig
    from xllm_framework.model import ModelFiles
    from xllm_runtime.worker.llm import LLMWorker

    config = XLLMConfig.from_flat({"device": "cuda", "dtype": "bfloat16", "load_format": "dummy", "num_blocks": 64})
    worker = LLMWorker(config, ModelFiles(tmp_path, "hf", "dummy"), ARGS["qwen3"])
    assert worker.num_blocks_that_fit(BLOCK_SIZE) == 64
    worker.allocate_kv_cache(64, BLOCK_SIZE)
    maker = StepMaker(64, BLOCK_SIZE)
    prompt = maker.step([(0, [1, 2, 3]), (1, [4, 5])])
    tokens = worker.execute(prompt).token_ids.tolist()
    greedy = maker.step([(0, tokens[:1]), (1, tokens[1:])])
    first, second = worker.execute(greedy).token_ids.tolist(), worker.execute(greedy).token_ids.tolist()
    assert first == second
    greedy.sampling.temperature[:] = 0.7
    greedy.sampling.num_logprobs[:] = 2
    drawn = worker.execute(greedy)
    assert drawn.errors is None
    assert drawn.top_ids is not None
    assert drawn.top_ids[:, 0].tolist() == first


def test_single_tokens_by_the_portable_kernel(pair, monkeypatch):
    """What GPUs before Hopper run: Triton in place of the fused kernel."""
    from xllm_runtime.attention import paged_cuda

    fast, truth = pair
    monkeypatch.setattr(paged_cuda, "why_no_fused_decode", lambda spec: "it is an older GPU")
    with torch.device("cuda"):
        portable = type(fast)(fast.args, torch.bfloat16)
        portable.bind_kv_cache([layer.self_attn.kv_cache for layer in fast.decoder_layers()])
    portable.load_state_dict(fast.state_dict())
    maker, random = StepMaker(NUM_BLOCKS, BLOCK_SIZE), np.random.default_rng(3)
    eager, plain = (
        EagerExecutor(portable, torch.device("cuda", 0)),
        EagerExecutor(truth, torch.device("cpu")),
    )
    for count in (70, 1, 1):
        step = maker.step([(i, random.integers(0, 512, count).tolist()) for i in range(3)])
        assert error_of(logits_of(eager, portable, step), logits_of(plain, truth, step)) < TOLERANCE
