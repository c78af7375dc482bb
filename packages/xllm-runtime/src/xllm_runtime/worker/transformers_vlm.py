"""One rank of a model that sees and that transformers computes: a language model's worker with another executor.

What may not be added here: see `worker.llm`; how such a model is computed (`models.transformers_vision`).
"""

from __future__ import annotations

import torch

from xllm_framework.batch import ForwardInput
from xllm_framework.config import ModelConfig, XLLMConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.models.registry import ModelChoice
from xllm_runtime.models.transformers_vision import TransformersVisionModel
from xllm_runtime.worker.llm import LLMWorker


class WholePromptExecutor(EagerExecutor):
    """`Executor` that gives the model all media of each sequence."""

    def __init__(self, model: TransformersVisionModel, device: torch.device) -> None:
        super().__init__(model, device)
        self._vision_model = model

    @torch.inference_mode()
    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """See `Executor.forward`."""
        media = forward_input.media
        if media is None:
            return super().forward(forward_input)
        step = self.upload(forward_input)
        return self._vision_model.forward_prompts(step.token_ids, step.attention, media.prompts)


class TransformersVLMWorker(LLMWorker):
    """See `Worker` for what each method promises; raises as `LLMWorker` does."""

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        super().__init__(config, files, args)
        if isinstance(self._model, TransformersVisionModel):
            self._executor = WholePromptExecutor(self._model, self._platform.device)

    def choose_model(self, args: ModelArgs, config: ModelConfig) -> ModelChoice:
        """See `LLMWorker.choose_model`."""
        reasons = TransformersVisionModel.explain(args)
        if reasons:
            raise UnsupportedModel(
                f"no implementation fits architecture {args.architecture!r} with images (transformers: {', '.join(reasons)})"
            )
        return ModelChoice("transformers", TransformersVisionModel)
