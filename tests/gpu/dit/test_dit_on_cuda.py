"""Transformers on a GPU: float32 as on the CPU, bfloat16 near it, compiled blocks like plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
pytest.importorskip("diffusers")

from support import tiny_pipelines  # noqa: E402
from support.pipeline_truth import draw_ours  # noqa: E402
from xllm_framework.model.image_pipeline import read_image_pipeline  # noqa: E402
from xllm_framework.request.image_params import ImageParams  # noqa: E402
from xllm_runtime.models.dit.loading import compile_blocks, load_pipeline  # noqa: E402

PARAMS = ImageParams("a cat", 32, 32, 4, guidance_scale=3.5, max_sequence_length=16, seed=1)


def latents(folder: Path, device: str, dtype: torch.dtype, *, is_compiled: bool = False) -> torch.Tensor:
    pipeline = load_pipeline(folder, read_image_pipeline(folder), dtype, torch.device(device))
    if is_compiled:
        compile_blocks(pipeline.transformer)
    return draw_ours(pipeline, PARAMS)[0][-1].cpu()


def test_cuda_draws_what_the_cpu_draws(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_flux(tmp_path)
    expected = latents(folder, "cpu", torch.float32)
    assert (latents(folder, "cuda", torch.float32) - expected).abs().max() < 1e-3
    half = latents(folder, "cuda", torch.bfloat16)
    assert torch.nn.functional.cosine_similarity(half.flatten(), expected.flatten(), dim=0) > 0.98


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself, and of float32 products kept exact
def test_compiled_blocks_draw_the_same(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_flux(tmp_path)
    plain = latents(folder, "cuda", torch.float32)
    assert (latents(folder, "cuda", torch.float32, is_compiled=True) - plain).abs().max() < 1e-3
