"""The request factory: what it refuses and how it says so, ids, seeds, templates."""

from __future__ import annotations

import msgspec
import pytest
from xllm_script_model import TOKENS, token_id, write_checkpoint

from xllm_framework.chat_template import load_chat_template
from xllm_framework.config import LoadConfig
from xllm_framework.errors import InvalidRequest, RequestTooLong
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams, ServiceObjectives
from xllm_framework.request.messages import AddRequest
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.master import ChatInput
from xllm_runtime.master.request_factory import RequestFactory

LIMIT = 100
ANY = SamplingParams()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return resolve_model(str(write_checkpoint(tmp_path_factory.mktemp("script"))), LoadConfig())


@pytest.fixture
def make(files):
    def make_factory(seed: int = 0, *, has_template: bool = True) -> RequestFactory:
        template = load_chat_template(files, "") if has_template else None
        return RequestFactory(
            load_tokenizer(files), template, max_model_len=LIMIT, vocab_size=len(TOKENS), seed=seed, clock=lambda: 42.0
        )

    return make_factory


def test_a_text_and_its_token_ids_are_the_same_request(make):
    factory = make()
    by_text, by_ids = factory.from_prompt("Hi", ANY), factory.from_prompt([72, 105], ANY)
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == [72, 105]
    assert (by_text.prompt, by_ids.prompt) == ("Hi", None)
    assert by_text.message.arrival_time_s == 42.0
    assert by_text.sampling is ANY


def test_a_text_that_no_tokenising_could_fit_is_refused_unread(files, monkeypatch):
    tokenizer = load_tokenizer(files)
    factory = RequestFactory(
        tokenizer,
        load_chat_template(files, ""),
        max_model_len=LIMIT,
        vocab_size=len(TOKENS),
        seed=0,
        clock=lambda: 42.0,
    )
    text = "x" * (tokenizer.max_text_length(LIMIT) + 1)
    monkeypatch.setattr(tokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenised"))
    with pytest.raises(RequestTooLong, match=f"{len(text)} characters.*{LIMIT} tokens") as caught:
        factory.from_prompt(text, ANY)
    assert caught.value.param == "prompt"
    with pytest.raises(RequestTooLong, match="characters") as caught:
        factory.from_chat(ChatInput(messages=[{"role": "user", "content": text}]), ANY)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(make, prompt):
    with pytest.raises(InvalidRequest, match="at least one token") as caught:
        make().from_prompt(prompt, ANY)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("bad", [-1, len(TOKENS), 10**9])
def test_a_token_id_outside_the_vocabulary_is_refused(make, bad):
    with pytest.raises(InvalidRequest, match=str(bad)) as caught:
        make().from_prompt([1, bad, 2], ANY)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_token_ids_of_options_are_checked(make, field):
    value = {len(TOKENS): 1.0} if field == "logit_bias" else (len(TOKENS),)
    with pytest.raises(InvalidRequest) as caught:
        make().from_prompt("x", SamplingParams(**{field: value}))
    assert caught.value.param == field


def test_the_boundary_of_the_prompt_length(make):
    factory = make()
    assert len(factory.from_prompt("x" * (LIMIT - 1), ANY).prompt_token_ids) == LIMIT - 1
    for length in (LIMIT, LIMIT + 1, 2 * LIMIT):
        with pytest.raises(RequestTooLong, match=f"{length} tokens.*{LIMIT - 1}") as caught:
            factory.from_prompt("x" * length, ANY)
        assert caught.value.param == "prompt"


def test_the_boundary_of_prompt_and_output_together(make):
    factory = make()
    factory.from_prompt("x" * 60, SamplingParams(max_tokens=40))
    with pytest.raises(RequestTooLong, match=r"60 tokens.*41.*100") as caught:
        factory.from_prompt("x" * 60, SamplingParams(max_tokens=41))
    assert caught.value.param == "max_tokens"


def test_ids_are_unique_although_the_callers_are_not(make):
    factory = make()
    made = [factory.from_prompt("x", ANY, request_id="same") for _ in range(3)] + [factory.from_prompt("x", ANY)]
    assert len({prepared.request_id for prepared in made}) == 4
    assert [prepared.client_request_id for prepared in made] == ["same", "same", "same", None]


def test_unseeded_requests_differ_and_follow_the_configured_seed(make):
    def seeds(factory: RequestFactory) -> list[int]:
        return [factory.from_prompt("x", ANY).message.seed for _ in range(100)]

    assert seeds(make(7)) == seeds(make(7))
    assert seeds(make(7)) != seeds(make(8))
    assert seeds(make(0)) != seeds(make(0))
    assert len(set(seeds(make(7)))) == 100
    assert all(0 <= seed < 2**64 for seed in seeds(make(0)))


def test_a_chat_goes_through_the_template(make):
    prepared = make().from_chat(ChatInput(messages=[{"role": "user", "content": "Hi"}]), ANY)
    assert prepared.prompt == "<|user|>Hi<|end|><|assistant|>"
    assert prepared.prompt_token_ids[0] == token_id("<|user|>")
    assert not prepared.is_continuation


def test_an_answer_can_be_continued(make):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    prepared = make().from_chat(ChatInput(messages=messages, continue_final_message=True), ANY)
    assert prepared.prompt == "<|user|>Hi<|end|><|assistant|>Hel"
    assert prepared.is_continuation


def test_wrong_chats_are_refused(make):
    for factory, messages in (
        (make(), []),
        (make(has_template=False), [{"role": "user", "content": "Hi"}]),
        (make(), [{"role": "user", "content": "x" * LIMIT}]),
    ):
        with pytest.raises(InvalidRequest) as caught:
            factory.from_chat(ChatInput(messages=messages), ANY)
        assert caught.value.param == "messages"


def test_options_reach_the_engine_side(make):
    objectives = ServiceObjectives(ttft_slo_ms=200.0, tpot_weight=2.0)
    prepared = make().from_prompt(
        "x", ANY, priority=3, deadline_s=50.0, cache_salt="tenant", is_offline=True, objectives=objectives
    )
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(prepared.message), type=AddRequest)
    assert (message.priority, message.deadline_s, message.cache_salt, message.is_offline) == (3, 50.0, "tenant", True)
    assert message.objectives == objectives
