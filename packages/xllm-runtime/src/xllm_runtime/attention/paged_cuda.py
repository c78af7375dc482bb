"""Attention on a GPU over the paged cache: single tokens by the CUDA kernel of xllm-kernels, prompts as `prompts_cuda` chooses.

A step's sequences are told apart once, by the first layer. Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata, LastRows
from xllm_runtime.attention.prompts_cuda import PrefillRows, Rows, choose_prompt_kernel, why_no_triton_prompts
from xllm_runtime.platform.uploads import upload

DTYPES = (torch.bfloat16, torch.float16)
BLOCK_SIZE_STEP = 16
"""Blocks of other sizes than multiples of this are gathered for single tokens, too."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The sequences of a step that bring one token."""

    rows: Rows
    """B rows of [0, T)."""
    block_tables: torch.Tensor
    seq_lens: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Who is attended by what.

    In a step of both, what is found lies decodes first and is put in its place at the end, unless each kind lies together in the step.
    """

    decodes: DecodeRows | None
    prefills: PrefillRows | None
    places: torch.Tensor | None = None
    """int64 [T]: where each row of the step lies among decodes and prefills; None where rows are slices."""

    def outputs(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where decodes and prefills leave what they find, in `output` [T, ...]."""
        num_decodes = 0 if self.decodes is None else len(self.decodes.seq_lens)
        if self.decodes is None or self.prefills is None or self.places is not None:
            return output[:num_decodes], output[num_decodes:]
        return output[self.decodes.rows], output[self.prefills.rows]

    def placed(self, output: torch.Tensor) -> torch.Tensor:
        """Return `output` in the order of the step."""
        return output if self.places is None else output[self.places]


class PagedCUDAAttention:
    """`AttentionBackend` on `xllm_kernels.cuda`, where it serves, `xllm_kernels.triton`, or torch's `_flash_attention_forward`."""

    name: ClassVar[str] = "paged_cuda"

    def __init__(self, spec: AttentionSpec) -> None:
        from xllm_kernels.cuda import decode, ops

        self._scale = spec.scale
        self._write_kv = ops.write_kv
        self._decode_attention = decode.decode_attention if why_no_fused_decode(spec) is None else None
        self._workspace = decode.shared_workspace(spec.device)
        self._attend_prompts = choose_prompt_kernel(spec)

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """See `AttentionBackend.explain`."""
        if spec.device.type != "cuda":
            return [f"runs on a CUDA GPU, not on {spec.device}"]
        reasons = []
        if spec.dtype not in DTYPES:
            reasons.append(f"computes in bfloat16 and float16, not in {str(spec.dtype).removeprefix('torch.')}")
        if spec.kv_dtype not in (None, spec.dtype):
            reasons.append("keeps KV in the type that it computes in")
        if spec.softcap:
            reasons.append("has no soft cap of scores")
        if spec.sliding_window:
            reasons.append("has no sliding window")
        return reasons + _missing_kernels(spec)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        block_size = kv_cache[0].shape[1]
        if metadata.max_query_len == 1 and block_size % BLOCK_SIZE_STEP == 0:
            tables, lengths = metadata.block_tables, metadata.seq_lens
            self._decode(query, key, value, kv_cache, DecodeRows(metadata.slot_mapping, tables, lengths), output)
            return output
        plan = metadata.plans.get(self.name)
        if not isinstance(plan, StepPlan):
            plan = metadata.plans[self.name] = plan_step(metadata, block_size)
        self._write_kv(key, value, *kv_cache, metadata.slot_mapping)
        single, prompts = plan.outputs(output)
        if plan.prefills is not None:
            rows = plan.prefills.rows
            own = (key[rows], value[rows]) if plan.prefills.has_own_keys else (key, value)
            self._attend_prompts(query[rows], *own, kv_cache, plan.prefills, prompts, self._scale)
        if plan.decodes is not None:
            rows = plan.decodes.rows
            self._decode(query[rows], key[rows], value[rows], kv_cache, plan.decodes, single)
        return plan.placed(output)

    def forward_last(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
        last: LastRows,
    ) -> torch.Tensor:
        """See `AttendsLastRows.forward_last`: to the newest token of a sequence, all others are its context."""
        if kv_cache[0].shape[1] % BLOCK_SIZE_STEP:
            return self.forward(query, key, value, kv_cache, metadata)[last.rows]
        self._write_kv(key, value, *kv_cache, metadata.slot_mapping)
        output = torch.empty((len(last.rows), *query.shape[1:]), dtype=query.dtype, device=query.device)
        decodes = DecodeRows(last.rows, last.block_tables, last.seq_lens)
        self._decode(query[last.rows], key[last.rows], value[last.rows], kv_cache, decodes, output)
        return output

    def _decode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        decodes: DecodeRows,
        output: torch.Tensor,
    ) -> None:
        """One token a sequence; writes its KV."""
        max_seq_len = decodes.block_tables.shape[1] * kv_cache[0].shape[1]
        if self._decode_attention is None:
            from xllm_kernels.triton.decode_attention import decode_attention

            self._write_kv(key, value, *kv_cache, _newest_slots(decodes, kv_cache[0].shape[1]))
            tables, lengths = decodes.block_tables, decodes.seq_lens
            decode_attention(query, kv_cache, tables, lengths, out=output, scale=self._scale, max_seq_len=max_seq_len)
            return
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        self._decode_attention(
            query,
            key,
            value,
            kv_cache,
            decodes.block_tables,
            decodes.seq_lens,
            self._workspace,
            out=output,
            scale=self._scale,
            max_seq_len=max_seq_len,
        )


def plan_step(metadata: AttentionMetadata, block_size: int) -> StepPlan:
    """Tell decodes from prefills."""
    starts, lengths = (np.array(values, np.int64) for values in metadata.lengths_on_host())
    query_lens = np.diff(starts)
    is_prefill = query_lens > (1 if block_size % BLOCK_SIZE_STEP == 0 else 0)
    decoding, prefilling = np.flatnonzero(~is_prefill & (query_lens > 0)), np.flatnonzero(is_prefill)
    queries, keys = query_lens[prefilling], lengths[prefilling]
    spans = _spans(starts, decoding, prefilling)
    order = np.empty(0, np.int64)
    if spans is None:
        order = np.concatenate((starts[decoding], np.flatnonzero(np.repeat(is_prefill, query_lens))))
    arrays = (decoding, prefilling, order, np.argsort(order), _starts(queries), _starts(keys))
    decode_index, index, gathered, places, query_start, key_start = upload(arrays, metadata.seq_lens.device)
    single, several = spans or gathered.tensor_split((len(decoding),))
    tables, seq_lens = metadata.block_tables, metadata.seq_lens
    decodes = prefills = None
    if len(decoding):
        decodes = DecodeRows(single, tables[decode_index], seq_lens[decode_index])
    if len(prefilling):
        is_all = len(prefilling) == len(query_lens)
        prefills = PrefillRows(
            rows=several,
            query_start=query_start,
            key_start=key_start,
            max_query_len=int(queries.max()),
            max_key_len=int(keys.max()),
            has_own_keys=spans is not None and np.array_equal(keys, queries),
            block_tables=tables if is_all else tables[index],
            seq_lens=seq_lens if is_all else seq_lens[index],
            lengths=keys.tolist(),
            block_size=block_size,
        )
    return StepPlan(decodes, prefills, None if spans else places)


def _spans(starts: npt.NDArray[np.int64], *kinds: npt.NDArray[np.int64]) -> list[slice] | None:
    """Return the rows of each kind of sequences, whose indices ascend; None where rows of others lie between those of one."""
    spans = []
    for sequences in kinds:
        first, end = (int(starts[sequences[0]]), int(starts[sequences[-1] + 1])) if len(sequences) else (0, 0)
        if end - first != (starts[sequences + 1] - starts[sequences]).sum():
            return None
        spans.append(slice(first, end))
    return spans


def _newest_slots(decodes: DecodeRows, block_size: int) -> torch.Tensor:
    """int64 [B]: where the newest token of each sequence lies; -1 for unused rows."""
    last = (decodes.seq_lens.long() - 1).clamp(min=0)
    blocks = decodes.block_tables.gather(1, (last // block_size).unsqueeze(1)).squeeze(1).long()
    return torch.where(decodes.seq_lens > 0, blocks * block_size + last % block_size, -1)


def _starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return np.concatenate(([0], lengths.cumsum())).astype(np.int32)


def _missing_kernels(spec: AttentionSpec) -> list[str]:
    try:
        from xllm_kernels import explain
    except ImportError as error:
        return [f"xllm-kernels cannot be imported: {error}"]
    missing = explain("write_kv", str(spec.device))
    if missing:
        return missing
    reason = why_no_fused_decode(spec)
    return [] if reason is None or why_no_triton_prompts() is None else [reason]


def why_no_fused_decode(spec: AttentionSpec) -> str | None:
    """Return why the CUDA kernel cannot attend single tokens; None where it can."""
    from xllm_kernels import explain

    missing = explain("decode_attention", str(spec.device))
    if missing:
        return missing[0]
    from xllm_kernels.cuda.decode import why_no_decode_attention

    return why_no_decode_attention(spec.num_heads, spec.num_kv_heads, spec.head_dim, BLOCK_SIZE_STEP)
