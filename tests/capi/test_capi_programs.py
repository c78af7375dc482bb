"""C and C++ programs against the installed library, and against a build with sanitizers."""

from __future__ import annotations

import subprocess

import pytest

from capi.building import PROGRAMS, Build, Run


@pytest.mark.parametrize(
    "name",
    ["arguments.c", "lifecycle.c", "compat.c", "storms.cpp", "death.cpp", "wrapper.cpp", "pooling.cpp", "tools.cpp"],
)
def test_program(name: str, build: Build, run: Run) -> None:
    done = run(build(PROGRAMS / name))
    assert done.stdout == ""
    assert done.stderr == ""


def test_hundred_threads_times_fifty_requests(build: Build, run: Run) -> None:
    run(build(PROGRAMS / "storms.cpp"), "100", "50")


@pytest.mark.parametrize("name", ["lifecycle.c", "storms.cpp", "death.cpp", "compat.c"])
def test_program_under_sanitizers(name: str, build_sanitized: Build, run: Run) -> None:
    run(build_sanitized(PROGRAMS / name))


def test_decoder_survives_random_bytes(build_sanitized: Build, run: Run) -> None:
    run(build_sanitized(PROGRAMS / "fuzz_messages.cpp"), "20000")


def test_cpp_without_exceptions(build: Build, run: Run) -> None:
    run(build(PROGRAMS / "no_exceptions.cpp", "-fno-exceptions"))


def test_engine_ends_with_its_host(build: Build, obedient_environment: dict[str, str]) -> None:
    """The engine is gone after the host was killed, even while a forked child still holds the host's descriptors."""
    program = build(PROGRAMS / "killed_host.c")
    host = subprocess.run([program], env=obedient_environment, capture_output=True, text=True, timeout=60, check=False)
    assert host.returncode == -9, host.stderr
    engine_pid = host.stdout.strip()
    assert engine_pid.isdigit()
    subprocess.run(["tail", f"--pid={engine_pid}", "-f", "/dev/null"], timeout=30, check=True)
