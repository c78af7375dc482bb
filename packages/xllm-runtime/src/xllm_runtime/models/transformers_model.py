"""The `transformers` implementation: any causal model that the transformers library knows, correct first.

How a step is computed is decided by trial once the weights are there: over the paged cache if that gives the logits of
transformers' own forward (`transformers_paged`), else by computing every sequence anew (`transformers_recompute`). Knows
nothing of architectures. transformers is imported in these three modules only, and only when a model needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model import ModelArgs
from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.models.transformers_head import LogitsHead
from xllm_runtime.models.transformers_paged import PagedForward
from xllm_runtime.models.transformers_recompute import RecomputeForward
from xllm_runtime.models.transformers_trial import Trial

logger = logging.getLogger(__name__)

PLAIN_ATTENTION = "eager"
"""transformers' attention that knows all that a model asks for; sdpa leaves out soft caps in some versions."""


class ForwardStrategy(Protocol):
    """One way to compute a step with a transformers model; methods as in `CausalLM`."""

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`."""

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""


class TransformersCausalLM(nn.Module):
    """`CausalLM` around a transformers model, which exists only once weights are loaded."""

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.args = args
        self._dtype = dtype
        self._device = torch.get_default_device()
        self._config = model_configuration(args)
        self._strategy: ForwardStrategy | None = None
        self._head: LogitsHead | None = None

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why transformers cannot serve a model of these arguments."""
        if "general.architecture" in args.raw:
            return ["it reads folders in Hugging Face layout, not GGUF files"]
        try:
            import transformers
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        except ImportError as error:
            return [f"transformers cannot be imported: {error}"]
        reasons = []
        if args.raw.get("quantization_config"):
            reasons.append("the weights are quantised")
        known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(args.model_type, ())
        if args.architecture not in ((known,) if isinstance(known, str) else known):
            reasons.append(
                f"transformers {transformers.__version__} has no causal language model {args.architecture!r} "
                f"of type {args.model_type!r}"
            )
        if args.raw.get("auto_map") and reasons:
            reasons.append("code that comes with a checkpoint (auto_map) is never run")
        return reasons

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`; renaming and merging of tensors is left to transformers."""
        self._adopt(load_checkpoint(_model_class(self._config), self._config, self._dtype, weights))

    def make_dummy_weights(self) -> None:
        """Take the random weights with which transformers starts a training."""
        torch.manual_seed(0)
        self._adopt(_model_class(self._config)._from_config(self._config, dtype=self._dtype))

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`; weights must be loaded."""
        return self._loaded_strategy().kv_cache_shapes()

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        self._loaded_strategy().bind_kv_cache(caches)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""
        return self._loaded_strategy().forward(token_ids, positions, attention)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`."""
        if self._head is None:
            raise RuntimeError("load_weights must come before compute_logits")
        return self._head(hidden)

    def _loaded_strategy(self) -> ForwardStrategy:
        if self._strategy is None:
            raise RuntimeError("load_weights must come first")
        return self._strategy

    def _adopt(self, model: Any) -> None:
        """Take a loaded transformers model and find out how it can be served."""
        self.model = model.to(self._device).eval().requires_grad_(False)
        self._head = LogitsHead(self.model)
        self.model.set_attn_implementation(PLAIN_ATTENTION)
        trial = Trial(self.model, self.args.vocab_size)
        refusals = []
        for make in (PagedForward, RecomputeForward):
            reason = self._try(make, trial)
            if not reason:
                logger.info("%s is served by transformers with %s", self.args.architecture, make.__name__)
                return
            refusals.append(f"{make.__name__}: {reason}")
            self.model.set_attn_implementation(PLAIN_ATTENTION)
        raise UnsupportedModel(f"transformers' {self.args.architecture} cannot be served ({'; '.join(refusals)})")

    def _try(self, make: Callable[[Any, torch.dtype], ForwardStrategy], trial: Trial) -> str:
        """Use a strategy if its logits are those of the plain forward; else return why not."""
        try:
            self._strategy = make(self.model, self._dtype)
            return trial.difference(self)
        except Exception as error:  # a model's code that does not fit a strategy may fail in any way
            logger.debug("a strategy does not fit", exc_info=True)
            return first_line(error)


def load_checkpoint(
    model_class: Any, config: Any, dtype: torch.dtype, weights: Iterable[tuple[str, torch.Tensor]]
) -> Any:
    """Return transformers' model of a class with its weights.

    Raises:
        ModelLoadError: transformers refuses them, or some are missing or have a wrong shape; names one.
    """
    try:
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=dict(weights), dtype=dtype, output_loading_info=True
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelLoadError(f"transformers cannot load the checkpoint: {first_line(error)}") from error
    for problem, names in (("has no tensor", report["missing_keys"]), ("is wrong in", report["mismatched_keys"])):
        if names:
            raise ModelLoadError(f"the checkpoint {problem} {min(map(str, names))!r}")
    return model


def model_configuration(args: ModelArgs) -> Any:
    """Return transformers' configuration object of a model; raises `ModelLoadError` where transformers refuses it."""
    from transformers import AutoConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    fields = {name: value for name, value in args.raw.items() if name not in ("model_type", "auto_map")}
    try:
        return AutoConfig.for_model(args.model_type, **fields)
    except Exception as error:  # config classes check their fields with errors of many kinds
        raise ModelLoadError(f"transformers refuses config.json: {first_line(error)}") from error


def _model_class(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM._model_mapping[type(config)]


def first_line(error: Exception) -> str:
    """Return what an error of transformers says, as far as a sentence can hold it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
