"""Who runs next, with how many tokens and which blocks. Knows nothing of torch, of devices, of text or of clients."""

from xllm_scheduler.policy import SchedulerPolicy
from xllm_scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerPolicy"]
