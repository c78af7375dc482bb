"""`benchmarks/sanitize_gpu.py` under a program that plays compute-sanitizer: what it makes of findings, of silence and of its limit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "sanitize_gpu.py"
WALKS = """
tool, arguments = sys.argv[2], sys.argv[3:]
if "--planted" in arguments:
    sys.exit(9)
shard = arguments[arguments.index("--shard") + 1]
print(f"to walk: first_{shard[0]} in bfloat16\\nto walk: last_{shard[0]} in float16", flush=True)
print(f"walked: first_{shard[0]} in bfloat16, 0.1 s", flush=True)
"""
ENDS = '\nprint(f"walked: last_{shard[0]} in float16, 0.1 s")\n'


class Playing:
    """Runs the script with a sanitizer of such Python code."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _program(self, name: str, code: str) -> Path:
        path = self._folder / name
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{code}")
        path.chmod(0o700)
        return path

    def start(self, code: str, *options: str) -> subprocess.Popen[str]:
        given = ["--sanitizer", str(self._program("sanitizer", code)), "--nvcc", str(self._program("nvcc", "pass"))]
        command = [sys.executable, str(SCRIPT), "--processes", "2", *given, *options]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE)

    def run(self, code: str, *options: str) -> tuple[int, list[str]]:
        """Return the status and the lines printed."""
        process = self.start(code, *options)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output.splitlines()


@pytest.fixture
def playing(tmp_path: Path) -> Playing:
    return Playing(tmp_path)


def test_shards_are_summed(playing: Playing) -> None:
    status, lines = playing.run(WALKS + ENDS)
    assert status == 0
    assert lines[-4] == "racecheck: 4 of 4 parts of the walk in 2 shards, nothing found"
    assert lines[-3:] == [
        f"{tool}: 2 of 2 parts of the walk in 1 shards, nothing found"
        for tool in ("memcheck", "synccheck", "initcheck")
    ]


def test_shards_without_parts_are_no_failure(playing: Playing) -> None:
    code = WALKS.replace("print(", 'if shard[0] != "1":\n    print("no part to walk"); sys.exit(255)\nprint(', 1) + ENDS
    status, lines = playing.run(code, "--tools", "racecheck", "--processes", "8")
    assert status == 0
    assert lines[-1] == "racecheck: 2 of 2 parts of the walk in 8 shards, nothing found"
    status, lines = playing.run(code.replace("no part to walk", "no part"), "--tools", "racecheck")
    assert status == 1
    assert lines[-1] == "racecheck: 2 of 2 parts of the walk in 2 shards; not done: shards 2/2 (255)"
    status, lines = playing.run(code.replace('!= "1"', '!= "0"'), "--tools", "racecheck")
    assert status == 1
    assert lines[-1].endswith("nothing to walk")


def test_error_in_one_shard_is_named(playing: Playing) -> None:
    status, lines = playing.run(WALKS + ENDS + 'sys.exit(9 if shard == "2/2" else 0)', "--tools", "racecheck")
    assert status == 1
    assert lines[-1] == "racecheck: 4 of 4 parts of the walk in 2 shards; found errors in shards 2/2"


def test_silence_means_nothing_where_the_planted_error_was_not_found(playing: Playing) -> None:
    status, lines = playing.run((WALKS + ENDS).replace("sys.exit(9)", "sys.exit(0)"), "--tools", "memcheck")
    assert status == 1
    assert "did not find the error planted for it" in lines[-1]


def test_failed_part_and_empty_walk_are_no_success(playing: Playing) -> None:
    failing = WALKS + 'print("failed: last_1 in float16"); sys.exit(1)'
    status, lines = playing.run(failing, "--tools", "memcheck")
    assert status == 1
    assert lines[-1].endswith(
        "1 of 2 parts of the walk in 1 shards; failed: last_1 in float16; not done: shards 1/1 (1)"
    )
    status, lines = playing.run("sys.exit(9 * ('--planted' in sys.argv))", "--tools", "memcheck")
    assert status == 1
    assert lines[-1].endswith("nothing to walk")


def test_limit_leaves_a_summary_of_what_was_walked(playing: Playing) -> None:
    status, lines = playing.run(WALKS + "time.sleep(60)", "--tools", "racecheck", "--seconds", "2")
    assert status == 1
    assert "2 of 4 parts of the walk in 2 shards" in lines[-1]
    assert "not walked: last_1 in float16, last_2 in float16" in lines[-1]


def test_told_to_stop_it_still_says_what_was_walked(playing: Playing, tmp_path: Path) -> None:
    process = playing.start(WALKS + f"open({str(tmp_path / 'begun')!r}, 'w'); time.sleep(60)", "--tools", "memcheck")
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "1 of 2 parts of the walk in 1 shards" in output.splitlines()[-1]
