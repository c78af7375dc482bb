"""From what the engine side has drawn to callbacks: progress and images. Knows nothing of files' formats."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from xllm_framework.request import FinishReason, SequenceOutput
from xllm_framework.request.image_messages import ImageUpdate
from xllm_framework.request.image_output import GeneratedImage, ImageOutput
from xllm_framework.request.messages import EngineFailed, ImageUpdates
from xllm_runtime.master.dit_request import PreparedImages
from xllm_runtime.master.whole_outputs import InFlight, WholeOutputDispatcher

logger = logging.getLogger(__name__)
OnImageOutput = Callable[[ImageOutput], None]


_Images = InFlight[PreparedImages, ImageOutput]


class ImageDispatcher(WholeOutputDispatcher[PreparedImages, ImageOutput]):
    """Owns the image requests in flight; see `WholeOutputDispatcher`."""

    def _take(self, event: object) -> None:
        if not isinstance(event, ImageUpdates):
            logger.error("The engine side says something unknown: %s.", type(event).__name__)
            return
        self.stats = event.stats
        for update in event.updates:
            self._deliver(update.request_id, partial(_output, update), is_last=update.finished)

    def _ended(self, in_flight: _Images, reason: FinishReason, failure: EngineFailed | None) -> ImageOutput:
        is_aborted = reason is FinishReason.ABORT
        error, kind = (None, None) if is_aborted or failure is None else (failure.message, failure.kind)
        request_id = in_flight.prepared.request_id
        update = ImageUpdate(request_id, finished=True, is_aborted=is_aborted, error=error, error_kind=kind)
        return _output(update, in_flight)


def _output(update: ImageUpdate, in_flight: _Images) -> ImageOutput:
    prepared, timings, now_s = in_flight.prepared, in_flight.timings, time.monotonic()
    if timings.first_scheduled_s is None and update.num_steps_done:
        timings.first_scheduled_s = now_s
    output = ImageOutput(
        prepared.client_request_id or prepared.request_id,
        [],
        finished=update.finished,
        num_prompt_tokens=0,
        timings=timings,
        position=update.position,
        num_steps_done=update.num_steps_done,
        num_steps=update.num_steps,
    )
    if update.image is not None and update.index is not None:
        output.images = [GeneratedImage(update.index, prepared.params.seed + update.index, update.image)]
    if update.finished:
        timings.finished_s = now_s
        reason = FinishReason.ABORT if update.is_aborted else FinishReason.STOP
        output.outputs = [SequenceOutput(0, finish_reason=FinishReason.ERROR if update.error else reason)]
        output.error, output.error_kind = update.error, update.error_kind
    return output
