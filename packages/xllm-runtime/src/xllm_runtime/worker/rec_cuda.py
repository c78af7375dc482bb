"""Searches on a GPU: all rounds in one CUDA graph, and with prompts of few tokens their prefill, too.

A graph serves all batches of one `SearchKey` (padded sizes). The first two batches of a size compute eagerly, and the second captures
afterwards, as sizes that come once are not worth it; later ones are one replay: nothing is read back between rounds. Graphs of a
catalogue end with it. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from xllm_framework.batch.search_batch import FoundBeams, SearchBatch
from xllm_framework.rec.valid_paths import ValidPaths
from xllm_runtime.attention import AttentionSpec
from xllm_runtime.attention.paged_cuda import BLOCK_SIZE_STEP, PagedCUDAAttention
from xllm_runtime.attention.prompts_cuda import why_no_hopper_prompts
from xllm_runtime.executor.captured_graph import GraphMemory
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.sampling.beams import DevicePaths
from xllm_runtime.worker.rec import Searcher
from xllm_runtime.worker.rec_graph import CapturedSearch, SearchKey

MAX_GRAPHS = 64
"""Of one pipeline; the oldest goes first."""
PROMPT_BUCKETS = (128, 256, 512, 768, 1024, 1280, 1536, 2048)
"""Tokens that captured prompts are padded to; more keep a GPU busy for longer than the host takes to launch their prefill."""
BEAMS_PER_TILE = 128
"""Queries of one head that a block of threads attends together."""
MULTIPROCESSORS = 132
"""Of an H200."""
MIN_KEYS_PER_PART = 256

HiddenOf = Callable[[SearchBatch], torch.Tensor]


class CUDASearcher:
    """A `Searcher` of one pipeline, on a stream of its own."""

    def __init__(
        self, model: LlamaForCausalLM, hidden_of: HiddenOf, device: torch.device, block_size: int, drawing: Searcher
    ) -> None:
        """`drawing` serves batches that draw, which are no matter of speed."""
        self._drawing = drawing
        self._model = model
        self._hidden_of = hidden_of
        self._device = device
        self._block_size = block_size
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._paths: ValidPaths | None = None
        self._levels: list[DevicePaths] = []
        self._captured: dict[SearchKey, CapturedSearch] = {}
        self._memory = GraphMemory(device)
        self._captures_prompts = captures_prompts(model, device, block_size)

    @torch.inference_mode()
    def search(self, batch: SearchBatch) -> list[FoundBeams]:
        """See `Searcher.search`."""
        with torch.cuda.stream(self._stream):
            if batch.draws:
                return self._drawing.search(batch)
            self._use(batch.paths)
            key = search_key(batch, self._model.args.num_heads, captures_prompts=self._captures_prompts)
            hidden = None if key.num_new_tokens else self._hidden_of(batch)
            search = self._captured.pop(key, None)
            if search is None:
                search = CapturedSearch(key, self._model, self._levels, self._device, self._block_size, self._memory)
            self._captured[key] = search  # the newest last
            while len(self._captured) > MAX_GRAPHS:
                del self._captured[next(iter(self._captured))]
            return search.run(batch, hidden)

    def _use(self, paths: ValidPaths | None) -> None:
        """Bring a catalogue's paths to the device, unless they are there."""
        if paths is self._paths:
            return
        self._captured.clear()
        self._paths = paths
        self._levels = [] if paths is None else device_paths(paths, self._device)


def device_paths(paths: ValidPaths, device: torch.device) -> list[DevicePaths]:
    """Return all levels of `paths` on `device`."""
    return [
        DevicePaths(
            torch.from_numpy(paths.starts[level].astype(np.int64)).to(device),
            torch.from_numpy(paths.tokens[level].astype(np.int64)).to(device),
            paths.most_children(level),
        )
        for level in range(paths.num_levels)
    ]


def captures_prompts(model: LlamaForCausalLM, device: torch.device, block_size: int) -> bool:
    """Whether prompts of any lengths can be attended without reading these back."""
    args = model.args
    spec = AttentionSpec(
        num_heads=args.num_heads,
        num_kv_heads=args.num_kv_heads,
        head_dim=args.head_dim,
        scale=args.head_dim**-0.5,
        dtype=model.head.weight.dtype,
        device=device,
    )
    is_paged = not PagedCUDAAttention.explain(spec) and block_size % BLOCK_SIZE_STEP == 0
    return is_paged and why_no_hopper_prompts(spec) is None


def search_key(batch: SearchBatch, num_heads: int, *, captures_prompts: bool) -> SearchKey:
    """Return the sizes that serve `batch`. Lengths cost nothing but width of tables, so they are padded to powers of two."""
    num_searches, longest = _power_of_two(batch.num_requests), max(_power_of_two(int(batch.prompt_lens.max())), 64)
    num_beams = int(batch.widths.max())
    tiles = num_searches * num_heads * -(-num_beams // BEAMS_PER_TILE)
    num_splits = max(1, min(MULTIPROCESSORS // tiles, longest // MIN_KEYS_PER_PART))
    num_new = 0
    if captures_prompts and len(batch.prefills) == 1 and not any(batch.tensors):
        num_tokens = len(batch.prefills[0].token_ids)
        num_new = next((bucket for bucket in PROMPT_BUCKETS if num_tokens <= bucket), 0)
    return SearchKey(num_searches, num_beams, batch.num_rounds, longest, num_splits, num_new)


def _power_of_two(count: int) -> int:
    """Return the least power of two from `count` on."""
    return 1 << (count - 1).bit_length()
