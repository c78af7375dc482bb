"""Typed, frozen options by category. Knows nothing of how a command line is parsed: `sources` merges what others read.

Precedence: explicit command line, then JSON file, then environment (`XLLM_` + field name), then the default here.
"""

from xllm_framework.config.dit import DiTConfig
from xllm_framework.config.execution import ExecutionConfig
from xllm_framework.config.kv_cache import KVCacheConfig
from xllm_framework.config.load import LoadConfig
from xllm_framework.config.model import ModelConfig
from xllm_framework.config.multimodal import MultimodalConfig
from xllm_framework.config.parallel import ParallelConfig
from xllm_framework.config.rec import RecConfig
from xllm_framework.config.scheduler import SchedulerConfig
from xllm_framework.config.service import ServiceConfig
from xllm_framework.config.sources import XLLMConfig, load_config

__all__ = [
    "DiTConfig",
    "ExecutionConfig",
    "KVCacheConfig",
    "LoadConfig",
    "ModelConfig",
    "MultimodalConfig",
    "ParallelConfig",
    "RecConfig",
    "SchedulerConfig",
    "ServiceConfig",
    "XLLMConfig",
    "load_config",
]
