"""The examples compile without warnings and do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capi.building import EXAMPLES, PACKAGE, Build, Run, check_output


@pytest.mark.parametrize("source", sorted(EXAMPLES.glob("*.c*")), ids=lambda path: path.name)
def test_example_compiles_without_warnings(source, build: Build) -> None:
    assert build(source).is_file()


def test_simple(build: Build, run: Run) -> None:
    done = run(build(EXAMPLES / "simple.c"), "say hello to you")
    assert done.stdout == "hello to you \n"
    assert "obedient: 4 prompt tokens, 3 new ones, ended by stop" in done.stderr


def test_stream(build: Build, run: Run) -> None:
    done = run(build(EXAMPLES / "stream.c"), "Name three rivers.")
    assert done.stdout == "system=Answer in one sentence. user=Name three rivers. \n"
    assert done.stderr == "7 tokens streamed\n"


def test_tokens(build: Build, run: Run) -> None:
    lines = run(build(EXAMPLES / "tokens.c"), "", "12", "873", "40").stdout.splitlines()
    assert lines == [f"candidate {i}: 0(-0.50 of 2) 1(-0.50 of 2) 2(-0.50 of 2) [length]" for i in range(4)]


def test_many_threads(build: Build, run: Run) -> None:
    lines = run(build(EXAMPLES / "many_threads.cpp"), "20", "10", "say a b").stdout.splitlines()
    assert lines[0].startswith("20 threads x 10 requests: 200 answered, 0 failed")
    assert re.fullmatch(r"latency ms: p50 [\d.]+  p90 [\d.]+  p99 [\d.]+  max [\d.]+", lines[1])


def test_chat(build: Build, run: Run) -> None:
    done = run(build(EXAMPLES / "chat.cpp"), text="hello\nagain\n\n")
    assert done.stdout.splitlines() == [
        "Talking to obedient",
        "> user=hello ",
        "> user=hello assistant=user=hello user=again ",
        "> ",
    ] or done.stdout.endswith("user=again \n> ")


def test_examples_with_the_real_engine(build: Build, script_model, script_environment: dict[str, str]) -> None:
    """The same program against a model, so that nothing above rests on the obedient engine alone."""
    from xllm_script_model import script

    command = (build(EXAMPLES / "simple.c"), script("Hello", " world"), script_model)
    assert check_output(*command, env=script_environment).stdout == "Hello world\n"


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_readme_program(language: str, build: Build, run: Run, tmp_path: Path) -> None:
    (program,) = re.findall(
        rf"^```{language}\n(.*?)^```", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    source = tmp_path / f"readme.{language}"
    source.write_text(program.replace("Once upon a time", "say once upon a time"))
    assert run(build(source)).stdout == "once upon a time \n"
