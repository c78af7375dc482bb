"""Recommendations through the library: the same as in Python, every way in, every refusal; on the example's model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from capi.building import EXAMPLES, PROGRAMS, Build, Run, check_output
from xllm_capi.messages import Paths, Search
from xllm_capi.searching import SearchCall
from xllm_framework.rec import read_items

MODEL = Path(__file__).parents[2] / "examples" / "rec_movielens" / "model"
FILMS = (50, 172, 181)


@pytest.fixture(scope="module")
def history() -> list[int]:
    items = read_items(MODEL / "items.bin")
    rows = [items.item_ids.tolist().index(film) for film in FILMS]
    return [0, *items.tokens[rows].flatten().tolist()]


def test_example_finds_what_python_finds(build: Build, history: list[int], script_environment: dict[str, str]) -> None:
    from xllm_runtime import LLM

    with LLM(str(MODEL), backend="rec", device="cpu", threads=1) as llm:
        paths = llm.recommend([history], beam_width=64, num_return_sequences=10)[0].paths
    command = (build(EXAMPLES / "recommend.c"), MODEL, *map(str, history))
    lines = check_output(*command, env=script_environment).stdout.splitlines()
    assert len(lines) == len(paths) == 10
    for line, path in zip(lines, paths, strict=True):
        found, _, item_ids = line.partition(" : ")
        score, *tokens = found.split()
        assert float(score) == pytest.approx(path.score, abs=1e-4)
        assert [int(token.partition("(")[0]) for token in tokens] == path.token_ids
        logprobs = [float(text) for text in re.findall(r"\((.*?)\)", found)]
        assert logprobs == pytest.approx(path.logprobs, abs=1e-4)
        assert [int(text) for text in item_ids.split()] == path.item_ids


def test_every_way_in_and_every_refusal(build: Build, history: list[int], script_environment: dict[str, str]) -> None:
    check_output(build(PROGRAMS / "recommend.cpp"), MODEL, *map(str, history), env=script_environment)


def test_every_way_in_under_sanitizers(
    build_sanitized: Build, history: list[int], script_environment: dict[str, str]
) -> None:
    environment = {**script_environment, "XLLM_PYTHON": sys.executable}
    check_output(build_sanitized(PROGRAMS / "recommend.cpp"), MODEL, *map(str, history), env=environment)


def test_engine_that_is_no_recommender(build: Build, run: Run, tmp_path: Path) -> None:
    source = tmp_path / "language_model.cpp"
    source.write_text(
        "#include <xllm/xllm.hpp>\n#include <iostream>\n"
        "int main() { xllm::Engine engine{xllm::EngineOptions{}}; xllm::Status status;\n"
        "engine.recommend_tokens({1, 2}, {}, status);\n"
        'std::cout << xllm_status_name(status.code) << " " << status.message; }\n'
    )
    assert run(build(source)).stdout == (
        'XLLM_ERROR_INVALID_REQUEST This engine is no recommender: create it with the option "backend": "rec".'
    )


class WaitingRecommender:
    """A recommender whose searches end when the test says so."""

    backend = "rec"

    def __init__(self) -> None:
        self.on_outputs: list[Callable[[object], None]] = []
        self.cancelled: list[str] = []

    def search_params(self, **given: object) -> object:
        if given.get("beam_width") == 13:
            raise ZeroDivisionError("bad luck")
        return given

    def prepare_search(self, prompt: object, params: object, **options: object) -> SimpleNamespace:
        return SimpleNamespace(request_id="request-0")

    def submit(self, prepared: object, on_output: Callable[[object], None]) -> None:
        self.on_outputs.append(on_output)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def search_call(**params: object) -> tuple[WaitingRecommender, SearchCall, list[Paths]]:
    master, answers = WaitingRecommender(), []
    return master, SearchCall(master, Search(5, None, [1], None, params, None, None, 0, ""), answers.append), answers


def test_cancelled_search_is_answered_once_and_given_up() -> None:
    master, call, answers = search_call()
    call.run()
    call.cancel()
    call.cancel()
    master.on_outputs[0](SimpleNamespace(error="late", error_kind=None, outputs=[]))
    assert [(answer.id, answer.kind) for answer in answers] == [(5, "cancelled")]
    assert master.cancelled == ["request-0"]


def test_search_that_is_cancelled_early_never_starts() -> None:
    master, call, answers = search_call()
    call.cancel()
    call.run()
    assert [answer.kind for answer in answers] == ["cancelled"]
    assert master.on_outputs == master.cancelled == []


def test_fault_of_the_engine_ends_one_search() -> None:
    _, call, answers = search_call(beam_width=13)
    call.run()
    assert [(answer.kind, "bad luck" in (answer.message or "")) for answer in answers] == [("internal", True)]
