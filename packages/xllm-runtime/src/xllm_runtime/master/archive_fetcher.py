"""Requests that wait for KV blocks of their prompts from an archive. The loop's own, beside the archive's thread.

Knows nothing of steps or files. A request waits only if fetching is expected to be faster than computing, and no longer than
computing would have taken: whatever is here by then is used, the rest is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

from xllm_framework.kv_cache import BlockArchive, BlockManager, plan_restore
from xllm_framework.request import FinishReason, Request
from xllm_framework.request.messages import SequenceDelta

MIN_BLOCKS = 2
"""Fewer are computed: a request that waits costs a turn of the loop."""


@dataclass(frozen=True, slots=True)
class FetchedRequest:
    """What the archive's thread puts into the loop's inbox."""

    request: Request


class ArchiveFetcher:
    """Used by the loop's thread.

    Args:
        ranks: the block managers over `archive`; they make equal keys.
        prefill_s: seconds that computing (tokens, tokens before them) takes.
    """

    def __init__(
        self, archive: BlockArchive, ranks: List[BlockManager], prefill_s: Callable[[int, int], float]
    ) -> None:
        self._archive = archive
        self._ranks = ranks
        self._prefill_s = prefill_s
        self._waiting: dict[str, tuple[Request, set[int]]] = {}
        """By request id, with the sequences that were aborted meanwhile."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def begin(self, request: Request, put: Callable[[FetchedRequest], None]) -> bool:
        """Begin to fetch what a new request can use; whether it is to wait for a `FetchedRequest`, given to `put`."""
        sequence, size = request.sequences[0], self._ranks[0].block_size
        if sequence.num_tokens <= MIN_BLOCKS * size or request.sampling.prompt_logprobs is not None:
            return False
        found = max(
            (blocks.find_fetchable(sequence, request.cache_salt) for blocks in self._ranks),
            key=lambda found: found.start,
        )
        if not found.keys:
            return False
        seconds = self._archive.seconds_a_block * len(found.keys[-1]) / len(found.keys)
        count = plan_restore(len(found.keys), seconds, self._prefill_s, found.start, sequence.num_tokens, size)
        if count < MIN_BLOCKS:
            return False
        self._waiting[request.request_id] = (request, set())
        limit_s = self._prefill_s(count * size, found.start)
        self._archive.fetch(list(found.keys[count - 1]), limit_s, lambda: put(FetchedRequest(request)))
        return True

    def take(self, fetched: FetchedRequest) -> set[int] | None:
        """Return the sequences of a request that were aborted while it waited; None if it does not wait any more."""
        request, aborted = self._waiting.get(fetched.request.request_id, (None, set()))
        if request is not fetched.request:
            return None
        del self._waiting[fetched.request.request_id]
        return aborted

    def abort(self, targets: list[str | tuple[str, int]]) -> list[SequenceDelta]:
        """Give up requests that wait; others are ignored. Returns their last deltas; see `ConstrainedRequests.abort`."""
        deltas: list[SequenceDelta] = []
        for target in targets if self._waiting else ():
            request_id, index = (target, None) if isinstance(target, str) else target
            if request_id not in self._waiting:
                continue
            request, aborted = self._waiting[request_id]
            indices = range(len(request.sequences))
            aborted.update(indices if index is None else [index])
            if aborted.issuperset(indices):
                del self._waiting[request_id]
                deltas += [SequenceDelta(request_id, number, [], FinishReason.ABORT) for number in indices]
        return deltas
