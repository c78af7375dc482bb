"""Masters: they prepare requests, own the loop between scheduler and engine, and bring outputs to callbacks.

Names are imported when they are first asked for; none of them imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xllm_framework.lazy_names import names_from

if TYPE_CHECKING:
    from xllm_runtime.master.chat_input import ChatInput
    from xllm_runtime.master.llm import LLMMaster
    from xllm_runtime.master.prepared_request import PreparedRequest
    from xllm_runtime.master.selection import create_master

__all__ = ["ChatInput", "LLMMaster", "PreparedRequest", "create_master"]

__getattr__ = names_from(
    __name__,
    {
        "ChatInput": "xllm_runtime.master.chat_input",
        "LLMMaster": "xllm_runtime.master.llm",
        "PreparedRequest": "xllm_runtime.master.prepared_request",
        "create_master": "xllm_runtime.master.selection",
    },
)
