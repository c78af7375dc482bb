"""What the front side imports: never torch, never transformers; and little before the engine process is started."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xllm_script_model import write_checkpoint


@pytest.mark.parametrize(
    "code",
    [
        "import xllm_runtime",
        "from xllm_runtime import LLM, SamplingParams",
        "import xllm_runtime.master.engine_process",
        "from xllm_runtime.master import ChatInput, LLMMaster, PreparedRequest",
    ],
)
def test_importing_brings_no_torch(code):
    check = "import sys; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert _run(f"{code}; {check}") == "[]\n"


def test_the_engine_process_is_started_before_anything_large_is_imported():
    check = "import sys; print(sorted({'numpy', 'pydantic', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    modules = "xllm_server.cli, xllm_server.launch, xllm_runtime.master.spawned_engine, xllm_framework.model.source"
    assert _run(f"import {modules}; {check}") == "[]\n"


def test_serving_over_an_engine_process_brings_no_torch(tmp_path):
    code = f"""
import queue, sys
from xllm_runtime import SamplingParams
from xllm_framework.config import XLLMConfig
from xllm_runtime.master import LLMMaster
config = XLLMConfig.from_flat({{"model": {str(write_checkpoint(tmp_path))!r}, "device": "cpu", "num_blocks": 50}})
master = LLMMaster.create(config, engine_process=True)
outputs = queue.SimpleQueue()
master.submit(master.prepare_completion("x", SamplingParams(max_tokens=4)), outputs.put)
while not outputs.get(timeout=60).finished:
    pass
master.close()
print(sorted({{"torch", "transformers"}} & set(sys.modules)))
"""
    assert _run(code) == "[]\n"


def test_an_engine_process_ends_with_its_parent(tmp_path):
    code = f"""
import os, signal
from xllm_framework.config import XLLMConfig
from xllm_runtime.master import LLMMaster
config = XLLMConfig.from_flat({{"model": {str(write_checkpoint(tmp_path))!r}, "device": "cpu", "num_blocks": 50}})
master = LLMMaster.create(config, engine_process=True)
print(master._client.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    # The engine process holds our end of standard error only; end of file here means that nobody holds standard output.
    child = int(process.communicate(timeout=120)[0])
    _wait_until_gone(child)


def _wait_until_gone(pid: int) -> None:
    import os
    import select

    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([handle], [], [], 10.0)[0], "the engine process outlives its parent"
    os.close(handle)


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
