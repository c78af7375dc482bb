"""Command line of the simulator."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from xllm_framework.config import SchedulerConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig, XLLMError
from xllm_framework.kv_cache import BlockManager
from xllm_scheduler.latency import LatencyModel, load_latency_model
from xllm_scheduler.simulator.compare import Setting, compare
from xllm_scheduler.simulator.decisions import DecisionLog
from xllm_scheduler.simulator.simulation import simulate
from xllm_scheduler.simulator.synthetic import SYNTHETIC, TraceShape
from xllm_scheduler.simulator.timeline import draw_timeline
from xllm_scheduler.simulator.trace import TINY, Trace, load_trace, save_trace

_NOT_SIMULATED = ("seed", "max_num_waiting", "latency_model")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xllm_scheduler.simulator",
        description="Run a trace through the scheduler on a virtual clock. Nothing is computed: steps only take time. "
        "All times it prints are those of the latency model.",
    )
    trace = parser.add_argument_group("trace")
    trace.add_argument(
        "--trace", help=f"JSON file (format: xllm_scheduler.simulator.trace), tiny, {', '.join(SYNTHETIC)}"
    )
    trace.add_argument("--seed", type=int, default=0, help="seed of a synthetic trace")
    for name, default in zip(TraceShape.__struct_fields__, TraceShape.__struct_defaults__, strict=True):
        trace.add_argument(_flag(name), type=type(default), default=default, help="of a synthetic trace")
    trace.add_argument("--save-trace", type=Path, metavar="FILE", help="write the trace as JSON")
    device = parser.add_argument_group("device")
    device.add_argument("--num-blocks", type=int, default=1024, help="blocks of the pool, the padding block included")
    device.add_argument("--block-size", type=int, default=16, help="tokens a block")
    device.add_argument(
        "--no-prefix-cache", action="store_true", help="do not share blocks of prompts that begin alike"
    )
    device.add_argument("--latency-model", metavar="FILE", help="JSON file of step times; replaces the three below")
    device.add_argument("--constant-us", type=float, help="time of an empty step")
    device.add_argument("--per-token-us", type=float, help="time a token computed")
    device.add_argument("--per-kv-token-us", type=float, help="time a KV token read")
    device.add_argument("--host-us", type=float, default=0.0, help="host work a step")
    scheduler = parser.add_argument_group("scheduler", "the options of xllm_framework.config.SchedulerConfig")
    for option in fields(SchedulerConfig):
        if option.name not in _NOT_SIMULATED:
            is_flag = isinstance(option.default, bool)
            kind: dict[str, Any] = {"type": type(option.default)}
            if is_flag:
                kind = {"action": argparse.BooleanOptionalAction}
            scheduler.add_argument(_flag(option.name), default=option.default, **kind)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compare",
        action="store_true",
        help="print what each feature gains on the trace instead; without --trace, each on a trace where it should show",
    )
    output.add_argument("--timeline", type=Path, metavar="FILE", help="draw a picture (needs matplotlib)")
    output.add_argument("--decisions", type=Path, metavar="FILE", help="write what was decided in each step")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one simulation and print its report; 2 if an option or the trace is wrong."""
    options = _parser().parse_args(arguments)
    try:
        setting = _setting(options)
        if options.trace is None and options.compare:
            print(compare(setting, None, options.seed))
            return 0
        trace = _trace(options)
        if options.save_trace is not None:
            save_trace(trace, options.save_trace)
        print(f"{len(trace.requests)} requests, policy {options.policy}, strategy {options.priority_strategy}")
        print(compare(setting, trace) if options.compare else _run(trace, setting, options))
    except XLLMError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


def _run(trace: Trace, setting: Setting, options: argparse.Namespace) -> str:
    log = DecisionLog()
    report = simulate(
        trace,
        setting.config,
        BlockManager(setting.num_blocks, setting.block_size, enable_prefix_cache=setting.enable_prefix_cache),
        setting.latency,
        host_s=setting.host_s,
        on_step=log.add,
    )
    if options.decisions is not None:
        options.decisions.write_text(log.to_text(), encoding="utf-8")
    if options.timeline is not None:
        draw_timeline(report, options.timeline)
    return report.to_text()


def _trace(options: argparse.Namespace) -> Trace:
    if options.trace is None:
        raise InvalidConfig("--trace is missing: a JSON file, tiny, or the name of a synthetic trace.")
    if options.trace == "tiny":
        return TINY
    if options.trace in SYNTHETIC:
        shape = TraceShape(**{name: getattr(options, name) for name in TraceShape.__struct_fields__})
        return SYNTHETIC[options.trace](shape, options.seed)
    return load_trace(Path(options.trace))


def _setting(options: argparse.Namespace) -> Setting:
    names = [option.name for option in fields(SchedulerConfig) if option.name not in _NOT_SIMULATED]
    config = XLLMConfig.from_flat({name: getattr(options, name) for name in names}, "command line").scheduler
    return Setting(
        config=config,
        latency=_latency(options),
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        enable_prefix_cache=not options.no_prefix_cache,
        host_s=1e-6 * options.host_us,
    )


def _latency(options: argparse.Namespace) -> LatencyModel:
    if options.latency_model is not None:
        return load_latency_model(Path(options.latency_model))
    default = LatencyModel()
    given = (options.constant_us, options.per_token_us, options.per_kv_token_us)
    constant_us, per_token_us, per_kv_token_us = (
        value if value is not None else fallback
        for value, fallback in zip(
            given, (default.constant_us, default.per_token_us, default.per_token_before_us), strict=True
        )
    )
    return LatencyModel.linear(constant_us=constant_us, per_token_us=per_token_us, per_kv_token_us=per_kv_token_us)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


if __name__ == "__main__":
    sys.exit(main())
