"""Draws images with a pipeline on one device: begins requests, steps samples, decodes them. Knows nothing of queues.

Samples are known by (request id, number of the image). Nothing of a sample outlives `drop` and `finish`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import OutOfMemory
from xllm_framework.model.image_pipeline import ImagePipeline
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_runtime.models.dit.autoencoders import to_pixels
from xllm_runtime.models.dit.denoiser import denoise
from xllm_runtime.models.dit.loading import compile_blocks, load_pipeline, pack_blocks, stored_dtype
from xllm_runtime.models.dit.pipelines.interface import Pipeline
from xllm_runtime.models.dit.samples import Sample
from xllm_runtime.models.dit.step_cache import make_step_cache
from xllm_runtime.platform import select_platform
from xllm_runtime.worker.loading import dtype_for

ImageSlot = tuple[str, int]
logger = logging.getLogger(__name__)


class DiTWorker:
    """One device with a loaded pipeline. Used by one thread.

    Raises:
        ModelLoadError: the pipeline cannot be loaded.
        InvalidConfig: an option cannot be met on this machine.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, pipeline: ImagePipeline) -> None:
        platform = select_platform(config.model.device)
        platform.set_threads(config.execution.threads)
        dtype = dtype_for(config.model, stored_dtype(files.path), platform)
        self.device, self.dtype = str(platform.device), str(dtype).removeprefix("torch.")
        self._pipeline: Pipeline = load_pipeline(files.path, pipeline, dtype, platform.device)
        if config.dit.dit_compile:
            compile_blocks(self._pipeline.transformer)
        else:
            pack_blocks(self._pipeline.transformer)
        self._samples: dict[ImageSlot, Sample] = {}

    @property
    def num_samples(self) -> int:
        """Images under way."""
        return len(self._samples)

    @torch.inference_mode()
    def begin(self, request_id: str, params: ImageParams) -> None:
        """Encode a request's prompts and make its samples.

        Raises:
            OutOfMemory: the device has no memory for them; nothing of the request is kept.
        """
        with _memory_errors():
            samples = self._pipeline.begin(params)
        num_blocks = self._pipeline.transformer.num_blocks
        for index, sample in enumerate(samples):
            for row in sample.rows:
                row.cache = make_step_cache(params.cache, num_blocks, sample.schedule.num_steps)
            self._samples[request_id, index] = sample

    @torch.inference_mode()
    def step(self, slots: Sequence[ImageSlot]) -> None:
        """Take samples of one shape one step further, all of them or none.

        Raises:
            OutOfMemory: the device has no memory for the step.
        """
        with _memory_errors():
            denoise(self._pipeline, [self._samples[slot] for slot in slots])

    @torch.inference_mode()
    def finish(self, slots: Sequence[ImageSlot]) -> list[RawImage]:
        """Return the images of samples of one shape, and forget them.

        Raises:
            OutOfMemory: the device has no memory to decode them; they are forgotten all the same.
        """
        samples = [self._samples.pop(slot) for slot in slots]
        with _memory_errors():
            latents = torch.cat([self._pipeline.latents(sample) for sample in samples])
            pixels = to_pixels(self._pipeline.decode(latents))
        return [RawImage(image.shape[1], image.shape[0], image.tobytes()) for image in pixels]

    def progress(self, slot: ImageSlot) -> tuple[int, int]:
        """Return the steps done and the steps in all."""
        sample = self._samples[slot]
        return sample.step, sample.schedule.num_steps

    def drop(self, request_id: str) -> None:
        """Forget every sample of a request."""
        for slot in [slot for slot in self._samples if slot[0] == request_id]:
            del self._samples[slot]


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn what torch raises when memory runs out into `OutOfMemory`, and let go of what its allocator holds."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        message = str(error)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # what torch raises on the CPU has no class of its own
            raise
        message = str(error)
    else:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    logger.warning("A batch of images ran out of memory: %s", message.splitlines()[0] if message else "no details")
    raise OutOfMemory("The device has no memory for this batch of images; ask for smaller or fewer ones, or try again.")
