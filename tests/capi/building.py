"""Compilers, paths and processes for the C API's tests. Knows nothing of what the programs check."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "packages" / "xllm-capi"
EXAMPLES = PACKAGE / "examples"
PROGRAMS = HERE / "programs"
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-O0"]
TIMEOUT_S = 120

Build = Callable[..., Path]
Run = Callable[..., subprocess.CompletedProcess[str]]


def compiler(source: Path) -> list[str]:
    """Return the compiler for a C (C11) or C++ (C++17) source, with the standard."""
    if source.suffix == ".c":
        return [os.environ.get("CC") or shutil.which("cc") or "gcc", "-std=c11", "-D_GNU_SOURCE"]
    return [os.environ.get("CXX") or shutil.which("c++") or "g++", "-std=c++17"]


def check_output(*command: str | Path, **keywords: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **keywords,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
