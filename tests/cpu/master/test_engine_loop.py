"""The engine side's loop over a real scheduler and the script model: steps, aborts, failures, invariants."""

from __future__ import annotations

import random

import pytest
from xllm_script_model import EOS, NAN, RAISE, TOKENS, script, token_id

from support.engine_side import GREEDY, EngineSide
from support.script_engine import SCRIPT_ARGS, ScriptEngine
from xllm_framework.errors import EngineDead
from xllm_framework.request import SamplingParams
from xllm_framework.request.messages import AbortRequests, AddRequest, Pause, Resume, Shutdown


class ScriptSide(EngineSide):
    """An engine side with the script model; prompts may be text."""

    is_overlapped = False

    def __init__(self, num_blocks: int = 200, **options):
        eos_token_ids = SCRIPT_ARGS.eos_token_ids
        super().__init__(
            ScriptEngine(num_blocks + 1, 16),
            num_blocks,
            eos_token_ids=eos_token_ids,
            enable_schedule_overlap=self.is_overlapped,
            **options,
        )

    def add(self, request_id: str, prompt: str | list[int], sampling: SamplingParams = GREEDY) -> None:
        super().add(request_id, encode(prompt) if isinstance(prompt, str) else prompt, sampling)

    def text(self, request_id: str, index: int = 0) -> bytes:
        return b"".join(TOKENS[token] for token in self.tokens[request_id, index])


@pytest.fixture(params=[False, True], ids=["in_turn", "overlapped"], autouse=True)
def is_overlapped(request, monkeypatch) -> bool:
    """Run every test with both loops."""
    monkeypatch.setattr(ScriptSide, "is_overlapped", request.param)
    return request.param


def encode(text: str) -> list[int]:
    """Tokenise as the script model's tokenizer does: specials, else bytes."""
    ids: list[int] = []
    while text:
        special = next((t for t in TOKENS[256:] if t.startswith(b"<|") and text.encode().startswith(t)), None)
        taken = special.decode() if special else text[0]
        ids.extend([token_id(special)] if special else taken.encode())
        text = text[len(taken) :]
    return ids


def test_a_script_comes_out():
    side = ScriptSide()
    side.add("a", script("Hello", " world"))
    side.finish()
    assert side.tokens["a", 0] == [token_id("Hello"), token_id(" world"), token_id(EOS)]
    assert side.reasons["a", 0] == "stop"
    assert side.holds_nothing


def test_ignore_eos_goes_on_to_max_tokens():
    side = ScriptSide()
    side.add("a", script("A", "B", EOS), SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=64))
    side.finish()
    assert len(side.tokens["a", 0]) == 64
    assert side.reasons["a", 0] == "length"


@pytest.mark.parametrize("chunk", [16, 32])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_a_warm_prefix_changes_nothing_at_block_edges(chunk: int, offset: int, blocks: int):
    side = ScriptSide(max_prefill_chunk=chunk)
    spelled = script("The", " end")
    prompt = "x" * (blocks * 16 + offset - len(encode(spelled))) + spelled
    assert len(encode(prompt)) == blocks * 16 + offset
    for request_id in ("cold", "warm"):
        side.add(request_id, prompt)
        side.finish()
    assert side.tokens["cold", 0] == side.tokens["warm", 0]
    assert side.text("warm") == b"The end" + EOS.encode()
    assert side.stats.prefix_cache_hits >= (blocks - 1) * 16 - (16 if offset < 0 else 0)


def test_a_preempted_answer_is_complete():
    def answers(num_blocks: int) -> tuple[ScriptSide, list[bytes]]:
        side = ScriptSide(num_blocks, enable_prefix_cache=False)
        for name, letters in (("a", "abcdefg"), ("b", "tuvwxyz")):
            wanted = (letters * 5)[:35]
            spelled = script(*wanted)
            side.add(name, [*([120] * 2), *encode(spelled)], SamplingParams(temperature=0.0, max_tokens=35))
        side.finish()
        return side, [side.text("a"), side.text("b")]

    # A script spells two or three digits a token, so the pool is scaled: both prompts fit, both outputs do not.
    needed = -(-(2 + len(encode(script(*("abcdefg" * 5)))) + 35) // 16)
    roomy, wanted = answers(200)
    tight, got = answers(2 * needed - 2)
    assert tight.stats.num_preemptions > 0
    assert roomy.stats.num_preemptions == 0
    assert got == wanted == [b"abcdefg" * 5, b"tuvwxyz" * 5]


def test_an_abort_frees_blocks_within_one_step():
    side = ScriptSide(enable_prefix_cache=False)
    side.add("a", script(*["x"] * 50))
    side.add("b", script("y"))
    side.step()
    assert not side.holds_nothing
    side.abort("a", "unknown")
    side.step()
    assert side.reasons["a", 0] == "abort"
    side.finish()
    assert side.blocks.num_free_blocks == side.blocks.num_usable_blocks
    assert side.text("b") == b"y" + EOS.encode()


def test_one_sequence_of_several_is_aborted_alone():
    side = ScriptSide()
    side.add("a", script(*"xyz"), SamplingParams(temperature=0.0, n=3))
    side.step()
    side.abort(("a", 1))
    side.finish()
    assert [side.reasons["a", index] for index in range(3)] == ["stop", "abort", "stop"]
    assert side.text("a", 2) == b"xyz" + EOS.encode()


@pytest.mark.parametrize("max_num_batched_tokens", [32, 2048])
def test_a_raising_sequence_fails_alone(max_num_batched_tokens: int):
    side = ScriptSide(max_num_batched_tokens=max_num_batched_tokens)
    side.add("good", script(*"abcdefgh"))
    side.add("bad", script("a", "b", "c", RAISE))
    side.add("later", script(*"xyz"), SamplingParams(temperature=0.0, n=2))
    side.finish()
    assert side.tokens["bad", 0] == list(b"abc")
    assert side.reasons["bad", 0] == "error"
    assert side.errors["bad", 0] == ("ScriptedFailure: the script raises at token 3", "request_failed")
    assert side.text("good") == b"abcdefgh" + EOS.encode()
    assert [side.text("later", index) for index in range(2)] == [b"xyz" + EOS.encode()] * 2
    assert side.holds_nothing


def test_logits_that_are_not_finite_fail_one_request():
    side = ScriptSide()
    side.add("bad", script("a", NAN, "b"))
    side.add("good", script(*"abc"))
    side.finish()
    assert side.reasons["bad", 0] == "error"
    assert side.errors["bad", 0][1] == "request_failed"
    assert side.text("good") == b"abc" + EOS.encode()


def test_a_dead_engine_ends_the_loop():
    side = ScriptSide()
    side.add("a", script("x"))
    side.engine.is_dead = True
    with pytest.raises(EngineDead):
        side.loop.run()


def test_run_ends_on_shutdown():
    side = ScriptSide()
    side.inbox.put(AddRequest("a", encode(script("x")), GREEDY, 0.0))
    side.inbox.put(AbortRequests(["nobody"]))
    side.inbox.put(Shutdown())
    side.loop.run()
    assert side.engine.num_steps == 0, "messages are applied before the next step, Shutdown too"


def test_a_paused_loop_computes_nothing_and_goes_on_after():
    side = ScriptSide()
    side.add("a", script("Hello", " world"))
    side.step()
    side.loop.apply(Pause("keep"))
    side.finish()
    assert side.stats.pause_state == "paused"
    assert side.stats.num_waiting == 1
    assert side.holds_nothing
    assert not side.reasons
    side.loop.apply(Resume())
    assert side.stats.pause_state == "running"
    side.finish()
    assert side.text("a").startswith(b"Hello world")


def test_a_pause_can_end_what_runs():
    side = ScriptSide()
    side.add("a", script("Hello", " world"))
    side.step()
    side.loop.apply(Pause("abort"))
    side.finish()
    assert side.stats.pause_state == "paused"
    assert side.reasons["a", 0] == "abort"


def test_200_random_requests_with_aborts_in_24_blocks():
    chance = random.Random(5)

    def requests() -> list[tuple[str, list[int], list[int], SamplingParams]]:
        made = []
        for number in range(200):
            answer = [chance.randrange(32, 127) for _ in range(chance.randrange(1, 30))]
            padding = [chance.choice([97, 98]) for _ in range(chance.choice([0, 5, 16, 33, 64]))]
            sampling = SamplingParams(temperature=0.0, n=chance.choice([1, 1, 1, 2]), max_tokens=40)
            made.append((f"r{number}", padding + encode(script(*answer)), answer, sampling))
        return made

    side = ScriptSide(24, max_model_len=24 * 16, max_num_batched_tokens=64, max_num_seqs=8)
    aborted = set()
    waiting = requests()
    everything = list(waiting)
    live: list[str] = []
    while waiting or side.loop.has_work:
        for _ in range(chance.randrange(0, 4)):
            if waiting:
                request_id, prompt, _, sampling = waiting.pop(0)
                side.add(request_id, prompt, sampling)
                live.append(request_id)
        if live and chance.random() < 0.15:
            victim = live.pop(chance.randrange(len(live)))
            side.abort(victim if chance.random() < 0.7 else (victim, 0))
            aborted.add(victim)
        side.step()  # the loop checks the invariants after each step
    assert side.stats.num_preemptions > 0
    for request_id, _, answer, sampling in everything:
        for index in range(sampling.n):
            got = side.tokens.get((request_id, index), [])
            if request_id in aborted and side.reasons[request_id, index] == "abort":
                assert got == answer[: len(got)]
            else:
                assert side.reasons[request_id, index] == "stop"
                assert got == [*answer, token_id(EOS)]
    assert len(aborted) > 20
    assert side.holds_nothing
