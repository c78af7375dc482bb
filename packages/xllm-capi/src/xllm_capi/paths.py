"""Where the headers, the library and the build files of libxllm lie: the command `xllm-config`. Loads nothing of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import xllm_capi

LIBRARY = Path("lib", "libxllm.so.1")
"""Named by its ABI version; lib/libxllm.so beside it is a linker script that leads here."""


class MissingLibrary(Exception):
    """No folder of the package holds the library."""


def prefix() -> Path:
    """Return the folder with include/ and lib/.

    In an editable installation the Python files and the installed tree lie apart, and both are on the package's path.

    Raises:
        MissingLibrary: the package was not built.
    """
    for folder in xllm_capi.__path__:
        if (Path(folder) / LIBRARY).is_file():
            return Path(folder).resolve()
    raise MissingLibrary(f"No {LIBRARY} in {', '.join(xllm_capi.__path__)}: build and install xllm-capi.")


def compile_flags() -> list[str]:
    """Return what a compiler needs to find the headers."""
    return [f"-I{prefix() / 'include'}"]


def link_flags() -> list[str]:
    """Return what a linker needs; the run path makes the program find the library without LD_LIBRARY_PATH."""
    folder = prefix() / "lib"
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lxllm"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is asked for on one line; exit code 1 when the library is missing."""
    parser = argparse.ArgumentParser(prog="xllm-config", description="Print how to build programs against libxllm.")
    parser.add_argument("--cflags", action="store_true", help="compiler flags")
    parser.add_argument("--libs", action="store_true", help="linker flags")
    parser.add_argument("--cmakedir", action="store_true", help="folder for xllm_DIR")
    parser.add_argument("--pkgconfigdir", action="store_true", help="folder for PKG_CONFIG_PATH")
    parser.add_argument("--prefix", action="store_true", help="folder with include/ and lib/")
    parser.add_argument("--version", action="store_true", help="version of the package")
    arguments = parser.parse_args(argv)
    if not any(vars(arguments).values()):
        parser.print_usage(sys.stderr)
        return 2
    try:
        print(" ".join(_answers(arguments)))
    except MissingLibrary as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _answers(arguments: argparse.Namespace) -> list[str]:
    answers: list[str] = []
    if arguments.version:
        answers.append(version("xllm-capi"))
    if arguments.prefix:
        answers.append(str(prefix()))
    if arguments.cmakedir:
        answers.append(str(prefix() / "lib" / "cmake" / "xllm"))
    if arguments.pkgconfigdir:
        answers.append(str(prefix() / "lib" / "pkgconfig"))
    if arguments.cflags:
        answers += compile_flags()
    if arguments.libs:
        answers += link_flags()
    return answers


if __name__ == "__main__":
    sys.exit(main())
