"""The engine of an image model: one worker, and which requests a failed step is to blame on.

What may not be added here: who is drawn next (the scheduler), how (the worker), or what a failure means for a request.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import OutOfMemory, RequestFailed, XLLMError
from xllm_framework.model.image_pipeline import ImagePipeline
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_runtime.worker.dit import DiTWorker, ImageSlot

logger = logging.getLogger(__name__)
Failures = dict[str, XLLMError]
"""Request id -> why it cannot go on."""


class DiTEngine:
    """Loads the pipeline, and computes steps of batches. Used by one thread.

    Raises:
        ModelLoadError: the pipeline cannot be loaded.
        InvalidConfig: an option cannot be met on this machine.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, pipeline: ImagePipeline) -> None:
        self._worker = DiTWorker(config, files, pipeline)
        self.device, self.dtype = self._worker.device, self._worker.dtype

    @staticmethod
    def shape(params: ImageParams) -> Hashable:
        """Return what must be equal for images to be drawn together."""
        return params.width, params.height, tuple((image.width, image.height) for image in params.images)

    def begin(self, request_id: str, params: ImageParams) -> None:
        """Make a request's samples; raises `XLLMError`, and then keeps nothing of it."""
        try:
            self._worker.begin(request_id, params)
        except XLLMError:
            raise
        except Exception as error:  # whatever a model raises is this request's failure
            raise _failure(error) from error

    def step(self, slots: Sequence[ImageSlot]) -> Failures:
        """Take a batch one step further. Out of memory all of it fails, for another reason only the requests to blame."""
        try:
            self._worker.step(slots)
        except OutOfMemory as error:
            return {request_id: error for request_id, _ in slots}
        except Exception as error:  # whatever a model raises
            logger.warning("A step failed (%s: %s); looking for the request to blame.", type(error).__name__, error)
        else:
            return {}
        return self._step_one_by_one(slots)

    def finish(self, slots: Sequence[ImageSlot]) -> tuple[dict[ImageSlot, RawImage], Failures]:
        """Decode samples that are done, and forget them."""
        try:
            return dict(zip(slots, self._worker.finish(slots), strict=True)), {}
        except XLLMError as error:
            return {}, {request_id: error for request_id, _ in slots}
        except Exception as error:  # whatever a model raises
            return {}, {request_id: _failure(error) for request_id, _ in slots}

    def progress(self, slot: ImageSlot) -> tuple[int, int]:
        """Return the steps done and the steps in all of a sample."""
        return self._worker.progress(slot)

    def drop(self, request_id: str) -> None:
        """Forget a request's samples."""
        self._worker.drop(request_id)

    def _step_one_by_one(self, slots: Sequence[ImageSlot]) -> Failures:
        failures: Failures = {}
        for slot in slots:
            try:
                self._worker.step([slot])
            except XLLMError as error:
                failures[slot[0]] = error
            except Exception as error:  # whatever a model raises is this request's failure
                failures[slot[0]] = _failure(error)
        return failures


def _failure(error: Exception) -> XLLMError:
    logger.error("A request for images failed.", exc_info=error)
    return RequestFailed(f"{type(error).__name__}: {error}")
