"""Drives any OpenAI server and prints TTFT, ITL, TPOT and E2E percentiles: the same as `xllm-server bench`.

    python benchmarks/serving.py --base-url http://127.0.0.1:8000 --concurrency 8 --input-len 128 --output-len 128

To set a peer beside it, run it again with the peer's `--base-url`; `--output FILE` keeps the figures as JSON.
"""

from __future__ import annotations

import sys

from xllm_server.bench.command import run_bench

if __name__ == "__main__":
    sys.exit(run_bench(sys.argv[1:]))
