"""The engine with a worker and a tiny Llama in it: tokens, log-probabilities, failures, what it says of itself."""

import numpy as np
import pytest
import torch
from xllm_script_model import NAN, RAISE, TOKENS, script, write_checkpoint

from support.batch_driver import BatchDriver
from support.tiny_checkpoints import VOCAB_SIZE, tiny_checkpoint
from xllm_framework.batch import Batch, BatchGroup
from xllm_framework.config import LoadConfig, XLLMConfig
from xllm_framework.errors import EngineDead, InvalidConfig, XLLMError
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime.engine import LLMEngine

PROMPTS = [[5, 6, 7, 8, 9], [100] * 17, list(range(40, 73))]


def start(model: str, **options: object) -> LLMEngine:
    config = XLLMConfig.from_flat({"model": model, "threads": 1, "device": "cpu", **options})
    files = resolve_model(model, LoadConfig())
    return LLMEngine(config, files, load_model_args(files))


@pytest.fixture(scope="module", params=["native", "python"])
def llama(request) -> LLMEngine:
    return start(str(tiny_checkpoint("llama")), model_impl=request.param)


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32).eval()


def expected_logprobs(reference: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    """Return [len(tokens), V]: row i is the distribution of what follows tokens[: i + 1]."""
    with torch.inference_mode():
        return torch.log_softmax(reference(torch.tensor([tokens])).logits[0], -1).numpy()


def script_prompt(*tokens: int | str) -> list[int]:
    special = {token: index for index, token in enumerate(TOKENS) if token.startswith(b"<|")}
    head, body, tail = b"<|script|>", script(*tokens).encode()[10:-14], b"<|end_script|>"
    return [special[head], *body, special[tail]]


@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
def test_greedy_tokens_are_those_of_transformers(llama, reference, chunk):
    driver = BatchDriver(llama)
    requests = [driver.request(prompt, SamplingParams(temperature=0.0)) for prompt in PROMPTS]
    for prompt, tokens in zip(PROMPTS, driver.generate(requests, 12, chunk=chunk), strict=True):
        logprobs = expected_logprobs(reference, prompt + tokens)
        assert tokens == logprobs.argmax(-1)[len(prompt) - 1 : -1].tolist()


def test_logprobs_are_those_of_the_model(llama, reference):
    driver = BatchDriver(llama)
    plain = driver.request(PROMPTS[0], SamplingParams(temperature=0.0))
    asked = driver.request(PROMPTS[1], SamplingParams(temperature=1.5, seed=3, logprobs=4))
    output = driver.step((plain, 0), (asked, 0))
    expected = expected_logprobs(reference, PROMPTS[1])[-1]
    assert output.logprobs[1] == pytest.approx(expected[output.token_ids[1]], abs=1e-4)
    assert output.top_ids[1].tolist() == np.argsort(-expected)[:4].tolist()
    assert output.top_logprobs[1] == pytest.approx(np.sort(expected)[::-1][:4], abs=1e-4)


@pytest.mark.parametrize("max_elements", [1, 3 * VOCAB_SIZE, 2**21])
def test_prompt_logprobs_come_with_each_chunk(llama, reference, monkeypatch, max_elements):
    monkeypatch.setattr("xllm_runtime.sampling.slices.MAX_ELEMENTS", max_elements)
    monkeypatch.setattr("xllm_runtime.worker.native.MAX_LOGITS", max_elements)
    driver = BatchDriver(llama)
    prompt = PROMPTS[2]
    other = driver.request(PROMPTS[0], SamplingParams(temperature=0.0))
    scored = driver.request(prompt, SamplingParams(temperature=0.0, prompt_logprobs=2))
    outputs = [driver.step((other, 0), (scored, 20)), driver.step((other, 0), (scored, 0))]
    logprobs, top_ids, top_logprobs = (
        np.concatenate(column) for column in zip(*(output.prompt_logprobs[1] for output in outputs), strict=True)
    )
    expected = expected_logprobs(reference, prompt)[:-1]
    assert logprobs == pytest.approx(expected[np.arange(len(prompt) - 1), prompt[1:]], abs=1e-4)
    assert top_ids.tolist() == np.argsort(-expected, axis=-1)[:, :2].tolist()
    assert top_logprobs == pytest.approx(-np.sort(-expected, axis=-1)[:, :2], abs=1e-4)


def test_prompt_logprobs_may_ask_for_no_alternatives(llama):
    driver = BatchDriver(llama)
    output = driver.step((driver.request(PROMPTS[0], SamplingParams(prompt_logprobs=0)), 0))
    logprobs, top_ids, top_logprobs = output.prompt_logprobs[0]
    assert (logprobs.shape, top_ids.shape, top_logprobs.shape) == ((4,), (4, 0), (4, 0))


def test_a_seeded_request_is_the_same_whoever_shares_its_batch(llama):
    def seeded_tokens(neighbours: int, chunk: int) -> list[int]:
        driver = BatchDriver(llama)
        seeded = driver.request(PROMPTS[1], SamplingParams(temperature=1.2, top_p=0.95, seed=0))
        others = [
            driver.request(PROMPTS[index % 3], SamplingParams(temperature=1.0, top_k=7), seed=1000 * neighbours + index)
            for index in range(neighbours)
        ]
        return driver.generate([*others, seeded], 16, chunk=chunk)[-1]

    alone = seeded_tokens(0, 64)
    assert [seeded_tokens(neighbours, chunk) for neighbours, chunk in ((1, 64), (2, 5), (4, 3), (3, 16))] == [alone] * 4


def test_other_seeds_give_other_tokens(llama):
    driver = BatchDriver(llama)
    requests = [driver.request(PROMPTS[0], SamplingParams(temperature=1.5), seed=seed) for seed in range(8)]
    assert len({tuple(tokens) for tokens in driver.generate(requests, 8, chunk=64)}) == 8


def test_min_tokens_bans_the_ends_of_text(llama):
    eos = 258
    driver = BatchDriver(llama)
    bias = {eos: 100.0}
    at_once = driver.request(PROMPTS[0], SamplingParams(temperature=0.0, logit_bias=bias))
    later = driver.request(PROMPTS[0], SamplingParams(temperature=0.0, logit_bias=bias, min_tokens=3))
    first, second = driver.generate([at_once, later], 4, chunk=64)
    assert first == [eos] * 4
    assert eos not in second[:3]
    assert second[3] == eos


def test_an_idle_step_gives_an_empty_output(llama):
    (output,) = llama.execute(BatchGroup((Batch(),)))
    assert output.token_ids.tolist() == []


def test_tells_what_it_runs(llama):
    assert (llama.device, llama.dtype) == ("cpu", "float32")
    assert start(str(tiny_checkpoint("llama"))).model_impl == "native"
    assert (llama.vocab_size, llama.block_size) == (VOCAB_SIZE, 16)
    assert llama.max_model_len == 256


@pytest.mark.parametrize(
    ("options", "num_blocks", "max_model_len"),
    [
        ({"num_blocks": 5}, 5, 64),
        ({"num_blocks": 5, "block_size": 8}, 5, 32),
        ({"max_num_seqs": 2}, 33, 256),
        ({"max_num_seqs": 2, "max_model_len": 40}, 7, 40),
        ({"max_cache_size": 10 * 16 * 3 * 2 * 2 * 16 * 4}, 10, 144),
    ],
)
def test_pool_and_context_follow_the_options(options, num_blocks, max_model_len):
    engine = start(str(tiny_checkpoint("llama")), **options)
    assert (engine.num_blocks, engine.max_model_len) == (num_blocks, max_model_len)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_blocks": 1}, "num_blocks 1"),
        ({"max_cache_size": 1000}, "max_cache_size 1000"),
        ({"max_model_len": 257}, "max_model_len 257"),
        ({"device": "tpu"}, "'tpu'"),
        ({"device": "npu:3"}, "npu:3"),
        ({"threads": -1}, "threads"),
    ],
)
def test_options_that_cannot_be_met_are_named(options, named):
    with pytest.raises(InvalidConfig, match=named):
        start(str(tiny_checkpoint("llama")), **options)


def test_dummy_weights_and_bfloat16_run():
    engine = start(str(tiny_checkpoint("qwen2")), load_format="dummy", dtype="bfloat16")
    driver = BatchDriver(engine)
    request = driver.request(PROMPTS[0], SamplingParams(temperature=1.0, logprobs=0))
    assert np.isfinite(driver.step((request, 0)).logprobs).all()
    assert engine.dtype == "bfloat16"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> LLMEngine:
    return start(str(write_checkpoint(tmp_path_factory.mktemp("script"))), num_blocks=100)


def test_a_failing_step_raises_and_can_be_executed_in_parts(scripted):
    driver = BatchDriver(scripted)
    good = driver.request(script_prompt(65, 66, 67), SamplingParams(temperature=0.0))
    bad = driver.request(script_prompt(65, RAISE), SamplingParams(temperature=0.0))
    driver.step((good, 0), (bad, 0))
    with pytest.raises(XLLMError, match="ScriptedFailure: the script raises at token 1"):
        driver.step((good, 0), (bad, 0))
    with pytest.raises(XLLMError, match="ScriptedFailure"):
        driver.step((bad, 0))
    driver.step((good, 0))
    driver.step((good, 0))
    assert good.sequences[0].output_token_ids.tolist() == [65, 66, 67]


def test_the_log_has_the_trace_of_a_failure(scripted, caplog):
    driver = BatchDriver(scripted)
    with pytest.raises(XLLMError):
        driver.step((driver.request(script_prompt(RAISE), SamplingParams(temperature=0.0)), 0))
    assert "ScriptedFailure" in caplog.text
    assert "Traceback" in caplog.text


def test_logits_that_are_not_finite_break_one_row(scripted):
    driver = BatchDriver(scripted)
    good = driver.request(script_prompt(65, 66), SamplingParams(temperature=0.0))
    bad = driver.request(script_prompt(NAN), SamplingParams(temperature=1.0, logprobs=1))
    output = driver.step((bad, 0), (good, 0))
    assert output.token_ids.tolist() == [-1, 65]
    assert list(output.errors) == [0]


def test_the_null_device_needs_no_weights_and_repeats_itself(tmp_path):
    folder = write_checkpoint(tmp_path / "script")
    files = resolve_model(str(folder), LoadConfig())
    args = load_model_args(files)
    (folder / "model.safetensors").unlink()
    config = XLLMConfig.from_flat({"device": "null", "num_blocks": 50})

    def tokens() -> list[list[int]]:
        driver = BatchDriver(LLMEngine(config, files, args))
        sampling = SamplingParams(logprobs=2, prompt_logprobs=1)
        return driver.generate([driver.request([1, 2, 3], sampling, seed=seed) for seed in (1, 2)], 20, chunk=2)

    first, second = tokens()
    assert tokens() == [first, second]
    assert first != second
    assert not {*first, *second} & {*args.eos_token_ids}


def test_a_closed_engine_says_so(tmp_path):
    engine = start(str(write_checkpoint(tmp_path / "script")))
    engine.close()
    engine.close()
    with pytest.raises(EngineDead):
        BatchDriver(engine).generate([BatchDriver(engine).request([1], SamplingParams())], 1, chunk=1)
