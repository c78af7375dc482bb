"""Prompts and chunks of few tokens by CUDA graphs of what lies between two attentions; attention itself runs eagerly.

With few tokens the host takes longer to launch a forward pass than the GPU to compute it. Attention depends on lengths that no
graph can hold, so a pass is captured in pieces that end where a layer calls its attention backend: tokens are padded to a bucket,
attention sees the real ones. Knows nothing of models but that their layers' attention can be wrapped.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import torch

from xllm_runtime.attention import AttentionBackend, AttentionMetadata, AttentionSpec
from xllm_runtime.executor.captured_graph import Address, GraphCapture, GraphMemory, capturing
from xllm_runtime.executor.step_tensors import StepTensors
from xllm_runtime.models.llm.llama import LlamaForCausalLM

BUCKETS = (16, 32, 64, 96, 128, 192, 256)
"""Tokens; more keep the GPU busy long enough."""

logger = logging.getLogger(__name__)


def prompt_bucket(num_tokens: int) -> int | None:
    """Return the tokens that `num_tokens` are padded to; None for more than there are graphs for."""
    return next((bucket for bucket in BUCKETS if num_tokens <= bucket), None)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Where a layer attends: tensors of a bucket's tokens at fixed addresses."""

    backend: AttentionBackend
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    kv_cache: tuple[torch.Tensor, torch.Tensor]
    output: torch.Tensor

    def attend(self, num_tokens: int, metadata: AttentionMetadata) -> None:
        """Attend the first `num_tokens` tokens."""
        query, key, value = self.query[:num_tokens], self.key[:num_tokens], self.value[:num_tokens]
        self.output[:num_tokens].copy_(self.backend.forward(query, key, value, self.kv_cache, metadata))


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """A forward pass over a bucket of tokens."""

    pieces: list[tuple[torch.cuda.CUDAGraph, AttentionCall | None]]
    """Each graph with what follows it."""
    hidden: torch.Tensor

    def run(self, num_tokens: int, metadata: AttentionMetadata) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden]."""
        for graph, call in self.pieces:
            graph.replay()
            if call is not None:
                call.attend(num_tokens, metadata)
        return self.hidden[:num_tokens]


class PieceEnds:
    """Attention backend of one layer; ends a piece where `PromptGraphs` is capturing, else does what `backend` does."""

    name: ClassVar[str] = "piece_ends"

    def __init__(self, backend: AttentionBackend, graphs: PromptGraphs) -> None:
        self._backend = backend
        self._graphs = graphs

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """See `AttentionBackend.explain`; whether the wrapped one serves has been asked before."""
        return []

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        if self._graphs.is_capturing:
            return self._graphs.end_piece(self._backend, query, key, value, kv_cache)
        return self._backend.forward(query, key, value, kv_cache, metadata)


class PromptGraphs:
    """The captured buckets of `model`, whose attention it wraps. Token ids and positions are read where `run` puts them."""

    def __init__(self, model: LlamaForCausalLM, memory: GraphMemory) -> None:
        self._model = model
        self._memory = memory
        self._captured: dict[int, CapturedPrompt | None] = {}
        self._capture: GraphCapture | None = None
        self._pieces: list[tuple[torch.cuda.CUDAGraph, AttentionCall | None]] = []
        args, most = model.args, BUCKETS[-1]
        self._input = torch.zeros((2, most), dtype=torch.int64, device=memory.device)
        dtype = model.embed_tokens.weight.dtype
        self._attended = torch.zeros((most, args.num_heads, args.head_dim), dtype=dtype, device=memory.device)
        for layer in model.decoder_layers():
            layer.self_attn.wrap_attention(lambda backend, _: PieceEnds(backend, self))

    @property
    def is_capturing(self) -> bool:
        """Whether a layer's attention ends a piece."""
        return self._capture is not None

    def has(self, bucket: int) -> bool:
        """Whether `bucket` was captured, or tried in vain."""
        return bucket in self._captured

    def run(self, step: StepTensors) -> torch.Tensor | None:
        """Return hidden states [T, hidden] of a step, valid until the next one; None where its bucket is not captured."""
        num_tokens = len(step.token_ids)
        bucket = prompt_bucket(num_tokens)
        captured = None if bucket is None else self._captured.get(bucket)
        if bucket is None or captured is None:
            return None
        self._input[:, num_tokens:bucket].zero_()
        self._input[0, :num_tokens].copy_(step.token_ids)
        self._input[1, :num_tokens].copy_(step.positions)
        return captured.run(num_tokens, step.attention)

    @torch.inference_mode()
    def capture(self, bucket: int) -> None:
        """Capture `bucket`, or note that it cannot be. Nothing runs on the device."""
        self._captured[bucket] = None
        try:
            with capturing(self._memory) as capture:
                self._capture = capture
                self._captured[bucket] = self._capture_pieces(capture, bucket)
        except RuntimeError as error:
            logger.warning("Prompts of %d tokens stay eager, as no graph could be captured: %s", bucket, error)
        finally:
            self._capture, self._pieces = None, []

    def end_piece(
        self,
        backend: AttentionBackend,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """End the piece that computed the arguments and begin the one that reads what this returns."""
        if self._capture is None:
            raise RuntimeError("a piece ends only during a capture")
        output = self._attended[: len(query)]
        graph = self._capture.end()
        query, key, value = (Address(tensor).tensor() for tensor in (query, key, value))
        self._pieces.append((graph, AttentionCall(backend, query, key, value, kv_cache, output)))
        self._capture.begin()
        return output

    def _capture_pieces(self, capture: GraphCapture, bucket: int) -> CapturedPrompt:
        no_lengths = torch.zeros(0, dtype=torch.int32, device=self._memory.device)
        metadata = AttentionMetadata(no_lengths, no_lengths, no_lengths, no_lengths, bucket)
        capture.begin()
        hidden = self._model.forward(self._input[0, :bucket], self._input[1, :bucket], metadata)
        self._pieces.append((capture.end(), None))
        return CapturedPrompt(self._pieces, hidden)
