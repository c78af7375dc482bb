"""Blocks come back from files with the content they had, or not at all; and answers show no trace of it."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path

import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidConfig
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM
from xllm_runtime.memory.block_files import BlockFiles
from xllm_runtime.memory.file_archive import FileArchive

PAYLOAD_BYTES = 100
KEYS = [bytes([number]) * 16 for number in range(8)]


def payload(key: bytes) -> bytes:
    return (key * 7)[:PAYLOAD_BYTES]


def block_files(folder: Path, fingerprint: bytes = b"model", num_files: int = 4) -> BlockFiles:
    size = PAYLOAD_BYTES + 8 + 16 + 32
    return BlockFiles(folder, fingerprint, PAYLOAD_BYTES, num_files * size)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.kv"))


def test_a_payload_survives_a_restart(tmp_path: Path) -> None:
    files = block_files(tmp_path)
    files.write(KEYS[0], payload(KEYS[0]))
    again = block_files(tmp_path)
    assert KEYS[0] in again
    assert again.read(KEYS[0]) == payload(KEYS[0])
    assert again.prefix_secret == files.prefix_secret
    assert KEYS[0].hex() not in files_in(tmp_path)[0].name


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    files = block_files(tmp_path)
    for key in KEYS[:4]:
        files.write(key, payload(key))
    files.read(KEYS[0])
    files.write(KEYS[4], payload(KEYS[4]))
    assert [key in files for key in KEYS[:5]] == [True, False, True, True, True]
    assert len(files_in(tmp_path)) == 4
    assert len(block_files(tmp_path, num_files=2)) == len(files_in(tmp_path)) == 2


@pytest.mark.parametrize("position", [0, 9, 30, 120, 150])
def test_a_file_with_a_flipped_bit_is_refused_and_removed(tmp_path: Path, position: int) -> None:
    files = block_files(tmp_path)
    files.write(KEYS[0], payload(KEYS[0]))
    (path,) = files_in(tmp_path)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert files.read(KEYS[0]) is None
    assert KEYS[0] not in files
    assert files_in(tmp_path) == []


def test_files_that_are_cut_short_swapped_or_foreign_are_refused(tmp_path: Path) -> None:
    files = block_files(tmp_path)
    foreign = block_files(tmp_path, b"another model")
    for key in KEYS[:3]:
        files.write(key, payload(key))
    first, second, third = (files._folder / f"{files._name(key)}.kv" for key in KEYS[:3])
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(third.read_bytes())
    foreign.write(KEYS[0], payload(KEYS[1]))
    third.write_bytes(files_in(foreign._folder.parent)[0].read_bytes())
    (foreign_file,) = foreign._folder.iterdir()
    third.write_bytes(foreign_file.read_bytes())
    assert [files.read(key) for key in KEYS[:3]] == [None, None, None]


def test_what_a_crash_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    files = block_files(tmp_path)
    files.write(KEYS[0], payload(KEYS[0]))
    folder = files_in(tmp_path)[0].parent
    (folder / "0123.part").write_bytes(b"half")
    (folder / "4567.kv").write_bytes(b"short")
    assert len(block_files(tmp_path)) == 1
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="archive_path"):
        block_files(tmp_path / "file")


def test_an_archive_writes_and_fetches_off_the_caller(tmp_path: Path) -> None:
    archive = FileArchive(block_files(tmp_path, num_files=8), PAYLOAD_BYTES)
    assert archive.accepts(KEYS[0])
    assert not archive.accepts(KEYS[0])
    assert archive.accepts(KEYS[1])
    for key in KEYS[:2]:
        archive.put(key, payload(key))
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    while not archive.holds(KEYS[1]):
        threading.Event().wait(0.001)
    assert archive.claim(KEYS[0]) is None
    archive.fetch([KEYS[0], KEYS[5], KEYS[1]], 60.0, lambda: ended.put(threading.current_thread().name))
    assert ended.get(timeout=30) == "xllm-archive"
    assert archive.claim(KEYS[0]) == payload(KEYS[0])
    assert archive.claim(KEYS[1]) is None
    archive.fetch([KEYS[1]], 0.0, lambda: ended.put("late"))
    assert ended.get(timeout=30) == "late"
    assert archive.claim(KEYS[1]) is None
    archive.close()


GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=6, n=2, ignore_eos=True)


def prompts() -> list[list[int]]:
    chance = random.Random(1)
    return [[chance.randrange(256) for _ in range(60 + number)] for number in range(6)]


def serve(folder: Path | None, rounds: int = 2, **options) -> tuple[list[list[list[int]]], list[int]]:
    """Return the tokens of all answers, and their cached tokens; a pool of 12 blocks keeps no more than two prompts."""
    flat = {"model_impl": "native", "device": "cpu", "dtype": "float32", "num_blocks": 13, "threads": 1, **options}
    with LLM(str(tiny_checkpoint("llama")), archive_path=str(folder or ""), check_integrity=True, **flat) as llm:
        outputs = [
            llm.generate(prompt, params, use_tqdm=False)[0]
            for _ in range(rounds)
            for prompt, params in zip(prompts(), [GREEDY, SEEDED] * 3, strict=True)
        ]
    return [[s.token_ids for s in output.outputs] for output in outputs], [o.num_cached_tokens for o in outputs]


@pytest.fixture
def slow_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let computing seem slow, so that fetching is worth it whatever the machine does."""
    monkeypatch.setattr("xllm_scheduler.scheduler.Scheduler.prefill_s", lambda self, tokens, before: 1.0 * tokens)


@pytest.mark.usefixtures("slow_model")
@pytest.mark.parametrize(
    "options",
    [{}, {"model_impl": "python"}, {"enable_schedule_overlap": True}, {"host_blocks_factor": 0.5}, {"dp_size": 2}],
)
def test_answers_are_the_same_and_prompts_come_back_from_files(tmp_path: Path, options: dict) -> None:
    wanted, cached_without = serve(None)
    assert sum(cached_without) == 0
    got, cached = serve(tmp_path, **options)
    assert got == wanted
    assert sum(cached[6:]) >= 6 * 32
    restarted, cached = serve(tmp_path, 1, **options)
    assert restarted == wanted[:6]
    assert sum(cached) >= 5 * 32


@pytest.mark.usefixtures("slow_model")
def test_broken_files_are_computed_anew(tmp_path: Path) -> None:
    wanted, _ = serve(tmp_path)
    for number, path in enumerate(files_in(tmp_path)):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if number % 2 else content[:-40] + bytes(40))
    got, cached = serve(tmp_path, 1)
    assert got == wanted[:6]
    assert sum(cached) == 0


def test_what_is_faster_to_compute_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xllm_scheduler.scheduler.Scheduler.prefill_s", lambda self, tokens, before: 1e-9 * tokens)
    wanted, _ = serve(None)
    got, cached = serve(tmp_path)
    assert got == wanted
    assert sum(cached) == 0
    assert files_in(tmp_path)


def test_an_implementation_that_cannot_read_blocks_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="archive_path"):
        LLM(str(tiny_checkpoint("llama")), device="null", archive_path=str(tmp_path))
