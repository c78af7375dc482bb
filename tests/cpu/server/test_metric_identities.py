"""The identities of docs/reference/metrics.md over a random crowd of requests, with preemptions and shared prompts."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from xllm_script_model import script

from support.server_process import ServerProcess, eventually

REASONS = ("stop", "length", "abort", "error")


def crowd(
    server: ServerProcess, num_requests: int, num_threads: int, seed: int, counts: tuple[int, ...] = (1, 1, 2)
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Serve a random crowd; return the usage of every answer, and what the metrics grew by."""
    draw = random.Random(seed)
    before = server.metrics()
    bodies = []
    for _ in range(num_requests):
        shared = "shared words " * draw.randrange(4)
        answer = [b"x"] * draw.randrange(1, 20)
        limit = draw.choice([8, 30])
        bodies.append(
            {
                "prompt": f"{shared}{draw.randrange(9)}{script(*answer)}",
                "max_tokens": limit,
                "n": draw.choice(counts),
            }
        )

    def one(body: dict[str, Any]) -> dict[str, Any]:
        answer = server.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        usage: dict[str, Any] = answer.json()["usage"]
        return usage

    with ThreadPoolExecutor(num_threads) as pool:
        usages = list(pool.map(one, bodies))
    eventually(server.is_idle)
    after = server.metrics()
    return usages, {name: value - before.get(name, 0.0) for name, value in after.items()}


def check_counts(usages: list[dict[str, Any]], grown: dict[str, float]) -> None:
    """Check what holds with preemptions and without."""
    assert grown["xllm:requests_total"] == len(usages)
    assert sum(grown[f"xllm:request_success_total,{reason}"] for reason in REASONS) == len(usages)
    assert grown["xllm:request_success_total,abort"] == grown["xllm:request_success_total,error"] == 0
    assert grown["xllm:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert grown["xllm:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    assert grown["xllm:request_prompt_tokens_count"] == grown["xllm:request_generation_tokens_count"] == len(usages)
    assert grown["xllm:request_generation_tokens_sum"] == grown["xllm:generation_tokens_total"]
    assert grown["xllm:prefix_cache_hits_total"] <= grown["xllm:prefix_cache_queries_total"]


def test_identities_without_preemption() -> None:
    with ServerProcess("--num-blocks", "2048", "--block-size", "16", "--check-integrity") as server:
        usages, grown = crowd(server, 80, 6, seed=1, counts=(1,))
        check_counts(usages, grown)
        assert grown["xllm:num_preemptions_total"] == 0
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert grown["xllm:prefix_cache_hits_total"] == cached > 0
        assert grown["xllm:prefix_cache_queries_total"] == grown["xllm:prompt_tokens_total"]


def test_identities_with_preemption() -> None:
    with ServerProcess("--num-blocks", "16", "--block-size", "16", "--check-integrity") as server:
        num_preemptions = 0.0
        for seed in range(2, 12):  # how many meet in the cache is for the threads to say
            usages, grown = crowd(server, 80, 16, seed=seed)
            check_counts(usages, grown)
            num_preemptions += grown["xllm:num_preemptions_total"]
            if num_preemptions:
                return
        raise AssertionError("Ten crowds met no preemption.")
