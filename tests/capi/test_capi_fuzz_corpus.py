"""Every file that fuzzing has found worth keeping, with sanitizers; see fuzz/README.md."""

from __future__ import annotations

from capi.building import HERE, Build, Run

FUZZ = HERE / "fuzz"


def test_kept_corpus(build_sanitized: Build, run: Run) -> None:
    files = sorted((FUZZ / "corpus").iterdir())
    assert {file.read_bytes()[:1] for file in files} >= set(map(bytes, zip(b"octkrm")))
    run(build_sanitized(FUZZ / "run_corpus.cpp", FUZZ / "json_texts.cpp"), *map(str, files))
