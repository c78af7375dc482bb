"""How long a step takes, as a function of what it computes. Knows nothing of queues, of blocks or of any device."""

from xllm_scheduler.latency.accuracy import Accuracy, measure_accuracy
from xllm_scheduler.latency.fit import LatencySample, fit_latency_model
from xllm_scheduler.latency.model import LatencyModel, load_latency_model, save_latency_model
from xllm_scheduler.latency.shape import StepShape
from xllm_scheduler.latency.sweep import SweepPlan, measure_latency_model
from xllm_scheduler.latency.token_budget import find_token_budget

__all__ = [
    "Accuracy",
    "LatencyModel",
    "LatencySample",
    "StepShape",
    "SweepPlan",
    "find_token_budget",
    "fit_latency_model",
    "load_latency_model",
    "measure_accuracy",
    "measure_latency_model",
    "save_latency_model",
]
