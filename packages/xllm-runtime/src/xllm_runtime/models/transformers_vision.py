"""The `transformers` implementation of models that see: any image-text-to-text model of the library, correct first.

A prompt with images is computed whole, by the model's own forward with all that its processor made, whichever part of it a step
asks for; its hidden states are kept for the other parts. What follows goes on from the library's cache where that is still at
hand, else everything is computed anew. In the paged cache lie token ids alone, so prefix caching, preemption and shared blocks
work as for any model. Knows nothing of architectures.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model import ModelArgs
from xllm_framework.multimodal import PromptMedia
from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.models.transformers_head import LogitsHead
from xllm_runtime.models.transformers_model import first_line, load_checkpoint, model_configuration
from xllm_runtime.processors.transformers_inputs import PromptInputs, read_inputs

MAX_KEPT = 64
"""Sequences whose state in the library's cache is kept."""
_STATEFUL = "rope_deltas"
"""Attribute of models that remember one batch's positions between calls, so that a sequence cannot be gone on with alone."""


@dataclass(slots=True)
class _Kept:
    """A sequence that was computed: the hidden states of its last `hidden` tokens, and the library's cache."""

    hidden: torch.Tensor
    cache: Any


class TransformersVisionModel(nn.Module):
    """`CausalLM` around a transformers model that sees; it exists only once weights are loaded."""

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.args = args
        self._dtype = dtype
        self._device = torch.get_default_device()
        self._config = model_configuration(args)
        self._token_ids: torch.Tensor | None = None
        self._kept: OrderedDict[tuple[bytes, bytes], _Kept] = OrderedDict()

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why transformers cannot serve a model of these arguments."""
        try:
            import transformers
            from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as KNOWN
        except ImportError as error:
            return [f"transformers cannot be imported: {error}"]
        reasons = ["the weights are quantised"] if args.raw.get("quantization_config") else []
        known = KNOWN.get(args.model_type, ())
        if args.architecture not in ((known,) if isinstance(known, str) else known):
            reasons.append(
                f"transformers {transformers.__version__} has no image-text-to-text model {args.architecture!r} of type "
                f"{args.model_type!r}"
            )
        return reasons

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`; renaming and merging of tensors is left to transformers."""
        self._adopt(load_checkpoint(_model_class(self._config), self._config, self._dtype, weights))

    def make_dummy_weights(self) -> None:
        """Take the random weights with which transformers starts a training."""
        torch.manual_seed(0)
        self._adopt(_model_class(self._config)._from_config(self._config, dtype=self._dtype))

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`: one layer whose K is a token id."""
        return [KVCacheShape(num_kv_heads=1, head_dim=1, dtype=torch.int32)]

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        self._token_ids = caches[0][0]

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`; no sequence has images."""
        return self.forward_prompts(token_ids, attention, [None] * len(attention.seq_lens))

    def forward_prompts(
        self, token_ids: torch.Tensor, attention: AttentionMetadata, media: Sequence[PromptMedia | None]
    ) -> torch.Tensor:
        """Compute T tokens of sequences whose prompts hold `media`, one entry a sequence: hidden states [T, hidden]."""
        if self._token_ids is None:
            raise RuntimeError("bind_kv_cache must come before forward")
        self._token_ids.view(-1).index_copy_(0, attention.slot_mapping, token_ids.to(torch.int32))
        block_size = self._token_ids.shape[1]
        starts, hidden = attention.query_start.tolist(), []
        for row, length in enumerate(attention.seq_lens.tolist()):
            blocks = attention.block_tables[row, : -(-length // block_size)].long()
            sequence = self._token_ids[blocks].view(-1)[:length].long()
            hidden.append(self._computed(sequence, starts[row + 1] - starts[row], media[row]))
        return torch.cat(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`."""
        return self._head(hidden)

    def _computed(self, sequence: torch.Tensor, num_new: int, media: PromptMedia | None) -> torch.Tensor:
        """Return the hidden states [num_new, hidden] of the last tokens of a sequence."""
        if not num_new:
            return torch.empty(0, self.args.hidden_size, dtype=self._dtype, device=self._device)
        tag = b"" if media is None else media.items[0].content_hash
        inputs = None if media is None else read_inputs(media.items[0])
        length = len(sequence)
        if inputs is not None and length < len(inputs.token_ids):  # part of a prompt, whose whole is computed
            sequence = torch.tensor(inputs.token_ids, device=sequence.device)
        key = tag, sequence.cpu().numpy().tobytes()
        before = tag, sequence[: length - num_new].cpu().numpy().tobytes()
        kept = self._kept.get(key)
        if kept is None or len(kept.hidden) < len(sequence) - length + num_new:
            is_continued = before in self._kept and length == len(sequence) and self._can_continue
            if is_continued:
                kept = self._continued(sequence[length - num_new :], self._kept.pop(before))
            else:
                kept = self._whole(sequence, inputs)
            self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        end = len(kept.hidden) - (len(sequence) - length)
        return kept.hidden[end - num_new : end]

    def _whole(self, sequence: torch.Tensor, inputs: PromptInputs | None) -> _Kept:
        output = self._layers(
            input_ids=sequence[None], use_cache=self._can_continue, **self._tensors(inputs, len(sequence))
        )
        return _Kept(output[0][0], getattr(output, self._cache_name, None))

    def _continued(self, tokens: torch.Tensor, kept: _Kept) -> _Kept:
        output = self._layers(input_ids=tokens[None], use_cache=True, **{self._cache_name: kept.cache})
        return _Kept(output[0][0], getattr(output, self._cache_name))

    def _tensors(self, inputs: PromptInputs | None, length: int) -> dict[str, torch.Tensor]:
        """Return what the processor made; what it says of each token of the prompt is 0 for those behind."""
        tensors = {}
        for named in () if inputs is None else inputs.tensors:
            tensor = torch.from_numpy(named.array().copy()).to(self._device)
            if inputs is not None and tensor.shape[:2] == (1, len(inputs.token_ids)) and tensor.ndim == 2:
                tensor = torch.nn.functional.pad(tensor, (0, length - tensor.shape[1]))
            tensors[named.name] = tensor.to(self._dtype) if tensor.is_floating_point() else tensor
        return tensors

    def _adopt(self, model: Any) -> None:
        self.model = model.to(self._device).eval().requires_grad_(False)
        self._layers = self.model.base_model
        try:
            self._head = LogitsHead(self.model)
        except Exception as error:
            raise UnsupportedModel(
                f"transformers' {self.args.architecture} cannot be served: {first_line(error)}"
            ) from error
        parameters = inspect.signature(self._layers.forward).parameters
        names = [name for name in ("cache", "past_key_values") if name in parameters]
        self._cache_name = names[0] if names else ""
        self._can_continue = bool(names) and not any(hasattr(module, _STATEFUL) for module in self.model.modules())


def _model_class(config: Any) -> Any:
    from transformers import AutoModelForImageTextToText

    try:
        return AutoModelForImageTextToText._model_mapping[type(config)]
    except KeyError as error:
        raise ModelLoadError(f"transformers has no image-text-to-text model for {type(config).__name__}") from error
