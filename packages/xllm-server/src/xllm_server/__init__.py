"""xLLM's HTTP server: OpenAI-compatible routes over a master of the runtime. Knows nothing of models or devices."""

from importlib.metadata import version

__version__ = version("xllm-server")
