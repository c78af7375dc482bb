"""Messages to prompts: a model's chat template, run in a sandbox."""

from xllm_framework.chat_template.loading import load_chat_template
from xllm_framework.chat_template.template import ChatTemplate

__all__ = ["ChatTemplate", "load_chat_template"]
