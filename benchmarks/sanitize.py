"""Builds the native decoder with a sanitizer and walks it through everything it does with threads and memory.

    python benchmarks/sanitize.py [--sanitizers thread,address] [--seconds 60] [--build-folder build/sanitize]

Needs cmake and GCC or Clang with the sanitizers' libraries; the build has a folder of its own. `csrc/check/native_walk.cpp`
says what is walked through. Exits with the walk's status: not 0 where a sanitizer found something or a result differed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "packages" / "xllm-kernels"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def build(folder: Path, sanitizer: str) -> Path:
    """Return the program, built under `folder`."""
    command = [
        "cmake",
        "-S",
        KERNELS,
        "-B",
        folder,
        f"-DXLLM_SANITIZE={sanitizer}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", "native_walk"], check=True, stdout=subprocess.DEVNULL)
    return folder / "native_walk"


def main() -> int:
    """Parse the command line, build, walk; return the first exit status that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizers", default="thread,address")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--build-folder", type=Path, default=Path("build") / "sanitize")
    options = parser.parse_args()
    for sanitizer in options.sanitizers.split(","):
        program = build(options.build_folder / sanitizer, sanitizer)
        with tempfile.TemporaryDirectory() as folder:
            print(f"{sanitizer}:", flush=True)
            command = [program, folder, str(options.seconds)]
            status = subprocess.run(command, check=False, env={**os.environ, **OPTIONS}).returncode
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
