"""Loads broken versions of a tiny GGUF model in a child process; each must load or be refused with one of our errors.

    python benchmarks/fuzz_gguf.py [--files 2000] [--seed 0]

Prints how many were refused and how many loaded (damage may miss what matters). Exits with 1 at the first other exception,
crash, or file that takes more than ten seconds or 6 GiB of addresses, and keeps that file. CI runs a few hundred
(`tests/cpu/native_runtime/test_broken_gguf.py`).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.broken_gguf import broken_models, load

CHUNK = 100
"""Files a child process."""
SECONDS_A_FILE = 10
MAX_ADDRESSES = 6 << 30


def load_chunk(first: int, count: int, seed: int, path: Path) -> None:
    """Load files `first` to `first` + `count` of a seed's, one after the other at `path`; print how many loaded."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES))
    print(sum(load(content, path) for content in islice(broken_models(first + count, seed), first, None)))


def main() -> int:
    """Parse the command line, load, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", nargs=2, metavar=("FIRST", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk:
        load_chunk(int(options.chunk[0]), options.files, options.seed, Path(options.chunk[1]))
        return 0
    num_loaded = 0
    path = Path(tempfile.mkdtemp()) / "broken.gguf"
    for first in range(0, options.files, CHUNK):
        count = min(CHUNK, options.files - first)
        command = [sys.executable, __file__, "--files", str(count), "--seed", str(options.seed)]
        command += ["--chunk", str(first), str(path)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_A_FILE * count, check=False)
        if child.returncode != 0:
            print(f"{child.stderr[-3000:]}\nexit status {child.returncode}; the file is {path}")
            return 1
        num_loaded += int(child.stdout)
    path.unlink()
    print(f"{options.files - num_loaded} refused, {num_loaded} loaded, none else")
    return 0


if __name__ == "__main__":
    sys.exit(main())
