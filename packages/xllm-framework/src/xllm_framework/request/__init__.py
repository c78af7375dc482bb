"""Requests, their sequences, how they sample and stop, and what comes back."""

from xllm_framework.request.output import RequestOutput, RequestTimings, SequenceOutput, TokenLogprob
from xllm_framework.request.request import Request
from xllm_framework.request.sampling_params import SamplingParams
from xllm_framework.request.sequence import Sequence
from xllm_framework.request.service_objectives import NO_OBJECTIVES, ServiceObjectives
from xllm_framework.request.status import FinishReason, SequenceStatus
from xllm_framework.request.stopping import StoppingChecker

__all__ = [
    "NO_OBJECTIVES",
    "FinishReason",
    "Request",
    "RequestOutput",
    "RequestTimings",
    "SamplingParams",
    "Sequence",
    "SequenceOutput",
    "SequenceStatus",
    "ServiceObjectives",
    "StoppingChecker",
    "TokenLogprob",
]
