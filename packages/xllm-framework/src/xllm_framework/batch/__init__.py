"""What one step computes and what comes back: the plain data between deciding and executing."""

from xllm_framework.batch.batch import Batch, ScheduledSequence
from xllm_framework.batch.batch_group import BatchGroup
from xllm_framework.batch.forward_input import ForwardInput, SamplingRows
from xllm_framework.batch.forward_output import ForwardOutput
from xllm_framework.batch.input_builder import ForwardInputBuilder

__all__ = [
    "Batch",
    "BatchGroup",
    "ForwardInput",
    "ForwardInputBuilder",
    "ForwardOutput",
    "SamplingRows",
    "ScheduledSequence",
]
