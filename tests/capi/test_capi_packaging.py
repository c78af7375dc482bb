"""What the wheel carries: symbols, headers, and the three ways to build a program outside of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capi.building import EXAMPLES, PACKAGE, WARNINGS, Run, check_output, compiler
from xllm_capi.paths import compile_flags, link_flags, main, prefix

LIBRARY = prefix() / "lib" / "libxllm.so.1"
CONFIG = Path(sys.executable).parent / "xllm-config"
PKG_CONFIG = shutil.which("pkg-config") or "pkgconf"
"""The system's, or the one that the test group brings."""
PARTS = tuple(f"hpp/{path.name}" for path in sorted((PACKAGE / "include" / "xllm" / "hpp").iterdir()))
HEADERS = ("xllm.h", "xllm_compat.h", "xllm.hpp", *PARTS)


def exported_symbols() -> set[str]:
    lines = check_output("nm", "--dynamic", "--defined-only", "--format=posix", LIBRARY).stdout.splitlines()
    return {name.split("@")[0] for name, kind, *_ in map(str.split, lines) if kind in "TDBRWV"}


def declared_functions() -> set[str]:
    text = "".join((PACKAGE / "include" / "xllm" / name).read_text() for name in HEADERS[:2])
    return set(re.findall(r"^XLLM_API [^;]*?\b(xllm_\w+)\(", text, re.MULTILINE))


def test_exported_symbols_are_the_declared_functions() -> None:
    assert len(declared_functions()) > 40
    assert exported_symbols() == declared_functions()


def test_soname_is_the_abi_version() -> None:
    header = (PACKAGE / "include" / "xllm" / "xllm.h").read_text()
    (major,) = re.findall(r"#define XLLM_API_VERSION_MAJOR (\d+)", header)
    dynamic = check_output("objdump", "-p", LIBRARY).stdout
    assert re.findall(r"SONAME\s+(\S+)", dynamic) == [LIBRARY.name] == [f"libxllm.so.{major}"]
    assert (LIBRARY.parent / "libxllm.so").read_text() == f"INPUT({LIBRARY.name})\n"
    assert sorted(path.name for path in LIBRARY.parent.glob("libxllm*")) == ["libxllm.so", LIBRARY.name]


def test_library_needs_no_python_and_only_system_libraries() -> None:
    needed = re.findall(r"NEEDED\s+(\S+)", check_output("objdump", "-p", LIBRARY).stdout)
    allowed = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    assert needed
    assert {name for name in needed if not name.startswith("ld-linux")} <= allowed


@pytest.mark.parametrize(
    ("suffix", "standard", "headers"),
    [(".c", "c11", HEADERS[:2]), (".cpp", "c++17", HEADERS), (".cpp", "c++20", HEADERS[1:3])],
)
def test_headers_compile_alone(suffix: str, standard: str, headers: tuple[str, ...], tmp_path: Path) -> None:
    for header in headers:
        source = tmp_path / f"only{suffix}"
        source.write_text(f"#include <xllm/{header}>\nint main(void) {{ return 0; }}\n")
        command = [compiler(source)[0], f"-std={standard}", *WARNINGS, *compile_flags(), "-fsyntax-only"]
        check_output(*command, source)


def test_installed_headers_are_those_of_the_source_tree() -> None:
    for header in HEADERS:
        assert (prefix() / "include" / "xllm" / header).read_text() == (
            PACKAGE / "include" / "xllm" / header
        ).read_text()


def test_xllm_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    version = capsys.readouterr().out.strip()
    assert f'version = "{version}"' in (PACKAGE / "pyproject.toml").read_text()
    assert main(["--cflags", "--libs"]) == 0
    assert capsys.readouterr().out.split() == compile_flags() + link_flags()
    for option, file in (("--cmakedir", "xllm-config.cmake"), ("--pkgconfigdir", "xllm.pc")):
        assert main([option]) == 0
        assert (Path(capsys.readouterr().out.strip()) / file).is_file()
    assert main([]) == 2


def needed_library(program: Path) -> str:
    """Return the name under which a program will look for the library."""
    (name,) = re.findall(r"NEEDED\s+(libxllm\S*)", check_output("objdump", "-p", program).stdout)
    return name


def test_plain_compiler(tmp_path: Path, run: Run) -> None:
    source = shutil.copy(EXAMPLES / "simple.c", tmp_path)
    flags = check_output(CONFIG, "--cflags", "--libs").stdout.split()
    check_output(*compiler(Path(source)), source, *flags, "-o", tmp_path / "simple")
    assert needed_library(tmp_path / "simple") == LIBRARY.name
    assert run(tmp_path / "simple", "say built by cc").stdout == "built by cc \n"


def test_pkg_config(tmp_path: Path, run: Run) -> None:
    source = shutil.copy(EXAMPLES / "simple.c", tmp_path)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix() / "lib" / "pkgconfig")}
    flags = check_output(PKG_CONFIG, "--cflags", "--libs", "xllm", env=environment).stdout.split()
    check_output(*compiler(Path(source)), source, *flags, "-o", tmp_path / "simple")
    assert needed_library(tmp_path / "simple") == LIBRARY.name
    assert run(tmp_path / "simple", "say built by pkg-config").stdout == "built by pkg-config \n"


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(outside LANGUAGES C CXX)
find_package(xllm 0.1 REQUIRED)
add_executable(simple simple.c)
target_link_libraries(simple PRIVATE xllm::xllm)
"""


def test_cmake(tmp_path: Path, run: Run) -> None:
    shutil.copy(EXAMPLES / "simple.c", tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT)
    folder = check_output(CONFIG, "--cmakedir").stdout.strip()
    check_output("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dxllm_DIR={folder}")
    check_output("cmake", "--build", tmp_path / "build")
    assert needed_library(tmp_path / "build" / "simple") == LIBRARY.name
    assert run(tmp_path / "build" / "simple", "say built by cmake").stdout == "built by cmake \n"


def test_program_finds_the_interpreter_of_its_library(tmp_path: Path) -> None:
    """Without any setting the engine runs in the environment that holds the library."""
    source = tmp_path / "where.c"
    source.write_text(
        "#include <stdio.h>\n#include <xllm/xllm.h>\n"
        'int main(void) { xllm_engine_options options = XLLM_ENGINE_OPTIONS_INIT; options.model = "/no/such/model";\n'
        "xllm_engine *engine = NULL; xllm_status status = xllm_engine_create(&options, &engine);\n"
        'printf("%s %s", xllm_status_name(status), xllm_last_error()); return 0; }\n'
    )
    check_output(*compiler(source), source, *compile_flags(), *link_flags(), "-o", tmp_path / "where")
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [tmp_path / "where"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith("XLLM_ERROR_MODEL_LOAD "), done.stdout
    assert "/no/such/model" in done.stdout
