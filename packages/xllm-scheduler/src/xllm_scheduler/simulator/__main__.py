"""Command line of the simulator."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import XLLMError
from xllm_framework.kv_cache import BlockManager
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.simulator.simulation import simulate
from xllm_scheduler.simulator.trace import TINY, load_trace


def _parser() -> argparse.ArgumentParser:
    defaults, latency = SchedulerConfig(), LatencyModel()
    parser = argparse.ArgumentParser(
        prog="python -m xllm_scheduler.simulator",
        description="Run a trace through the scheduler on a virtual clock. Nothing is computed: steps only take time.",
    )
    parser.add_argument("--trace", required=True, help="JSON file (format: xllm_scheduler.simulator.trace), or tiny")
    parser.add_argument("--policy", default=defaults.policy, help="decode_first or prefill_first")
    parser.add_argument("--num-blocks", type=int, default=1024, help="blocks of the pool, the padding block included")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a block")
    parser.add_argument(
        "--no-prefix-cache", action="store_true", help="do not share blocks of prompts that begin alike"
    )
    parser.add_argument("--max-num-seqs", type=int, default=defaults.max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=int, default=defaults.max_num_batched_tokens)
    parser.add_argument("--max-prefill-chunk", type=int, default=defaults.max_prefill_chunk)
    parser.add_argument("--no-chunked-prefill", action="store_true", help="compute each prompt in one step")
    parser.add_argument("--constant-us", type=float, default=latency.constant_us, help="time of an empty step")
    parser.add_argument("--per-token-us", type=float, default=latency.per_token_us, help="time a token computed")
    parser.add_argument(
        "--per-kv-token-us", type=float, default=latency.per_token_before_us, help="time a KV token read"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one simulation and print its report; 2 if an option or the trace is wrong."""
    options = _parser().parse_args(arguments)
    try:
        trace = TINY if options.trace == "tiny" else load_trace(Path(options.trace))
        config = SchedulerConfig(
            policy=options.policy,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_prefill_chunk=options.max_prefill_chunk,
            enable_chunked_prefill=not options.no_chunked_prefill,
        )
        block_manager = BlockManager(
            options.num_blocks, options.block_size, enable_prefix_cache=not options.no_prefix_cache
        )
        latency = LatencyModel.linear(
            constant_us=options.constant_us,
            per_token_us=options.per_token_us,
            per_kv_token_us=options.per_kv_token_us,
        )
        report = simulate(trace, config, block_manager, latency)
    except XLLMError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    print(f"{len(trace.requests)} requests, policy {options.policy}")
    print(report.to_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
