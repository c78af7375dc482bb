"""Drives an engine by hand: the test says which sequence computes how many tokens. Knows nothing of scheduling.

Every request has its own blocks, enough for its whole life, dealt in an order that leaves none contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Protocol

from xllm_framework.batch import Batch, BatchGroup, ForwardOutput, ScheduledSequence
from xllm_framework.request import Request, SamplingParams


class Engine(Protocol):
    """What is driven."""

    num_blocks: int
    block_size: int

    def execute(self, group: BatchGroup) -> list[ForwardOutput]:
        """Compute one step."""


class BatchDriver:
    """Requests of one sequence each, on `engine`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._free = [block for first in (2, 1) for block in range(first, engine.num_blocks, 2)]

    def request(self, prompt: Tokens[int], sampling: SamplingParams, *, seed: int = 0, max_tokens: int = 32) -> Request:
        """Return a request with blocks for its prompt and `max_tokens` more."""
        request = Request("request", list(prompt), sampling, arrival_time_s=0.0, seed=seed)
        (sequence,) = request.sequences
        for _ in range(-(-(len(prompt) + max_tokens) // self.engine.block_size)):
            sequence.block_table.append(self._free.pop())
        return request

    def batch(self, *parts: tuple[Request, int]) -> BatchGroup:
        """Return a step of (request, number of tokens) parts; 0 takes all that are not computed yet."""
        batch = Batch()
        for request, num_tokens in parts:
            (sequence,) = request.sequences
            start = sequence.num_computed_tokens
            batch.add(ScheduledSequence(request, sequence, start, num_tokens or sequence.num_uncomputed_tokens))
        return BatchGroup((batch,))

    def step(self, *parts: tuple[Request, int]) -> ForwardOutput:
        """Execute one step, advance its sequences and append what was sampled."""
        group = self.batch(*parts)
        (output,) = self.engine.execute(group)
        tokens = iter(output.token_ids.tolist())
        for item in group.batches[0]:
            if item.is_sampled and (token := next(tokens)) >= 0:
                item.sequence.append(token)
            item.sequence.num_computed_tokens = item.start + item.num_scheduled_tokens
        return output

    def generate(self, requests: list[Request], num_tokens: int, *, chunk: int = 0) -> list[list[int]]:
        """Run all requests together, prompts in chunks of `chunk` (0 is whole), until each has `num_tokens` tokens."""
        while pending := [request for request in requests if request.sequences[0].num_output_tokens < num_tokens]:
            self.step(*((request, min(chunk, request.sequences[0].num_uncomputed_tokens)) for request in pending))
        return [request.sequences[0].output_token_ids.tolist() for request in requests]
