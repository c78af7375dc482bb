"""From a folder in diffusers' layout to a pipeline that draws. Knows nothing of requests; imports only what it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from xllm_framework.errors import ModelLoadError
from xllm_framework.model.image_pipeline import ImagePipeline
from xllm_framework.model.json_file import read_json_object
from xllm_runtime.layers.packed_linear import pack_products
from xllm_runtime.models.dit.blocks import JointBlock, SingleBlock
from xllm_runtime.models.dit.components import check_diffusers, transformer_weights
from xllm_runtime.models.dit.modulation import Modulation
from xllm_runtime.models.dit.pipelines.interface import Folder, Pipeline
from xllm_runtime.weights.dummy import fill_dummy_weights

_HERE = "xllm_runtime.models.dit"
TRANSFORMERS = {
    "FluxTransformer2DModel": f"{_HERE}.flux:FluxTransformer",
    "QwenImageTransformer2DModel": f"{_HERE}.qwen_image:QwenImageTransformer",
    "SD3Transformer2DModel": f"{_HERE}.sd3:SD3Transformer",
    "DiTTransformer2DModel": f"{_HERE}.class_dit:ClassTransformer",
    "Transformer2DModel": f"{_HERE}.class_dit:ClassTransformer",
}
"""Class in model_index.json -> ours, "module:Class"."""
PIPELINES = {
    "FluxPipeline": f"{_HERE}.pipelines.flux:FluxPipeline",
    "FluxControlPipeline": f"{_HERE}.pipelines.flux:FluxPipeline",
    "FluxFillPipeline": f"{_HERE}.pipelines.flux:FluxPipeline",
    "QwenImagePipeline": f"{_HERE}.pipelines.qwen_image:QwenImagePipeline",
    "QwenImageEditPipeline": f"{_HERE}.pipelines.qwen_image:QwenImagePipeline",
    "QwenImageEditPlusPipeline": f"{_HERE}.pipelines.qwen_image:QwenImagePipeline",
    "StableDiffusion3Pipeline": f"{_HERE}.pipelines.sd3:SD3Pipeline",
    "DiTPipeline": f"{_HERE}.pipelines.class_dit:ClassPipeline",
}


def load_pipeline(
    path: Path, pipeline: ImagePipeline, dtype: torch.dtype, device: torch.device, **settings: Any
) -> Pipeline:
    """Load every part of the folder at `path` onto `device`.

    Args:
        settings: further arguments of the pipeline's class.

    Raises:
        ModelLoadError: a part is missing, broken or not known here; names it.
    """
    check_diffusers()
    transformer = _load_transformer(path / "transformer", pipeline, dtype, device)
    pipeline_class = _find(PIPELINES, pipeline.class_name)
    loaded: Pipeline = pipeline_class(Folder(path, pipeline, dtype, device), transformer, **settings)
    return loaded


def stored_dtype(path: Path) -> torch.dtype:
    """Return the type in which most of the transformer's first tensors are stored."""
    for _, tensor in transformer_weights(path / "transformer"):
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.float32


def make_transformer(
    class_name: str,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    *,
    has_dummy_weights: bool = False,
) -> Any:
    """Return a transformer without weights, or with random ones for benchmarks.

    Raises:
        UnsupportedModel: the configuration asks for something that is not computed here.
        ModelLoadError: it lacks a setting.
    """
    with device:
        try:
            model = _find(TRANSFORMERS, class_name)(config, dtype)
        except KeyError as error:
            raise ModelLoadError(f"The configuration of the {class_name} lacks {error}.") from error
    if has_dummy_weights:
        fill_dummy_weights(model)
    return model.eval()


def compile_blocks(transformer: Any) -> None:
    """Let torch compile each kind of block when it first runs, for each shape anew; takes seconds each time."""
    for module in transformer.modules():
        if isinstance(module, JointBlock | SingleBlock):
            module.compile(dynamic=False)


def pack_blocks(transformer: Any) -> None:
    """Let the products of blocks and of their modulation be the CPU's kernels' where those take them; not after compiling."""
    for module in list(transformer.modules()):
        if isinstance(module, JointBlock | SingleBlock):
            pack_products(module, in_workspace=True)
        elif isinstance(module, Modulation):  # its rows are kept for many steps
            pack_products(module, in_workspace=False)


def _load_transformer(folder: Path, pipeline: ImagePipeline, dtype: torch.dtype, device: torch.device) -> Any:
    config = read_json_object(folder / "config.json")
    model = make_transformer(pipeline.components["transformer"][1], config, dtype, device)
    try:
        model.load_weights(transformer_weights(folder))
    except ModelLoadError as error:
        raise ModelLoadError(f"The transformer in {folder} cannot be loaded: {error.message}") from error
    return model


def _find(table: dict[str, str], class_name: str) -> Any:
    path = table.get(class_name)
    if path is None:
        raise ModelLoadError(f"A {class_name} is not known here; these are: {', '.join(sorted(table))}.")
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
