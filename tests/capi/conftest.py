"""Fixtures of the C API's tests: compiled programs, and engines that need no model.

`obedient_environment` makes libxllm start `obedient_engine.py`, which does what its prompts say; `script_environment` the
real engine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capi.building import HERE, PACKAGE, SANITIZERS, WARNINGS, Build, Run, check_output, compiler
from xllm_capi.paths import compile_flags, link_flags


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compile one source against the installed package, with warnings as errors; each source once."""
    folder = tmp_path_factory.mktemp("programs")

    def build_one(source: Path, *flags: str) -> Path:
        program = folder / f"{source.stem}{abs(hash(flags))}"
        if not program.exists():
            command = [*compiler(source), *WARNINGS, "-O1", "-pthread", *flags, str(source), *compile_flags()]
            check_output(*command, *link_flags(), "-lm", "-o", program)
        return program

    return build_one


@pytest.fixture(scope="session")
def sanitized_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The library's sources compiled with AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("sanitized")
    cxx = compiler(Path("x.cpp"))[0]

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        definitions = ['-DXLLM_PACKAGE_VERSION="0.0-test"', "-D_GNU_SOURCE"]
        check_output(
            cxx, "-std=c++20", *SANITIZERS, *definitions, f"-I{PACKAGE / 'include'}", "-c", source, "-o", target
        )
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sorted((PACKAGE / "csrc").glob("*.cpp"))))


@pytest.fixture(scope="session")
def build_sanitized(sanitized_objects: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Link sources with the sanitized library into one program."""
    folder = tmp_path_factory.mktemp("sanitized-programs")

    def build_one(*sources: Path) -> Path:
        include = [f"-I{PACKAGE / 'include'}", f"-I{PACKAGE / 'csrc'}"]
        targets = [folder / f"{source.stem}.o" for source in sources]
        for source, target in zip(sources, targets, strict=True):
            standard = ["-std=c++20"] if source.suffix == ".cpp" else []
            check_output(*compiler(source), *standard, *SANITIZERS, *include, "-c", source, "-o", target)
        program = folder / sources[0].stem
        cxx = compiler(Path("x.cpp"))[0]
        check_output(cxx, *SANITIZERS, "-pthread", *targets, *sanitized_objects, "-ldl", "-lm", "-o", program)
        return program

    return build_one


@pytest.fixture(scope="session")
def obedient_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which every engine is an obedient one."""
    python = tmp_path_factory.mktemp("python") / "python"
    engine = shlex.join([sys.executable, "-P", str(HERE / "obedient_engine.py")])
    # libxllm calls it as an interpreter: -P -m xllm_capi.engine ARGUMENTS...
    python.write_text(f'#!/bin/sh\nshift 3\nexec {engine} "$@"\n')
    python.chmod(0o755)
    return {**os.environ, "XLLM_PYTHON": str(python)}


@pytest.fixture(scope="session")
def run(obedient_environment: dict[str, str]) -> Run:
    """Run a program against obedient engines; it must succeed."""

    def run_program(
        program: Path, *arguments: str, text: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return check_output(program, *arguments, env={**obedient_environment, **variables}, input=text)

    return run_program


@pytest.fixture(scope="session")
def script_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script model."""
    from xllm_script_model import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("models") / "script")


@pytest.fixture(scope="session")
def script_environment() -> dict[str, str]:
    """An environment for real engines that leaves the other core to others."""
    variables = {key: value for key, value in os.environ.items() if key != "XLLM_PYTHON"}
    return {**variables, "OMP_NUM_THREADS": "1", "XLLM_THREADS": "1"}
