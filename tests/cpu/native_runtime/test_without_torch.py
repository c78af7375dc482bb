"""The native implementation runs where torch and transformers are not installed, offline and as a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.server_process import ServerProcess
from support.tiny_checkpoints import tiny_checkpoint

WITHOUT = "import sys\nsys.modules['torch'] = sys.modules['transformers'] = sys.modules['gguf'] = None\n"
"""Makes every import of them fail, and find_spec find nothing."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=120)


def test_generates_with_every_kind_of_sampling():
    done = run(f"""
from xllm_runtime import LLM, SamplingParams
with LLM({str(tiny_checkpoint("qwen3"))!r}, num_blocks=50, threads=1) as llm:
    assert llm.master.ready.model_impl == "native", llm.master.ready
    params = [
        SamplingParams(max_tokens=4, temperature=0.0),
        SamplingParams(max_tokens=4, seed=1, top_p=0.9, top_k=50, min_p=0.01, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=4, seed=1, presence_penalty=1.0, repetition_penalty=1.1, logit_bias={{5: 1.0}}),
    ]
    for output in llm.generate(["abc"] * 3, params):
        assert output.error is None, output.error
        print(len(output.outputs[0].token_ids))
""")
    assert done.stdout.split() == ["4", "4", "4"], done.stderr


def test_what_needs_torch_says_what_adds_it():
    done = run(f"""
from xllm_framework.errors import UnsupportedModel
from xllm_runtime import LLM
try:
    LLM({str(tiny_checkpoint("gpt2"))!r}, num_blocks=50)
except UnsupportedModel as error:
    print(error.message)
""")
    assert "'GPT2LMHeadModel' is not one of LlamaForCausalLM" in done.stdout, done.stderr
    assert "Add it with: uv pip install 'xllm-runtime[torch]'." in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads the maps of a process")
def test_neither_process_of_a_server_maps_torch():
    with ServerProcess("--num-blocks", "50", "--device", "cpu", model=tiny_checkpoint("llama")) as server:
        assert server.complete("abc", max_tokens=3, temperature=0).status_code == 200
        for pid in (server.process.pid, server.engine_pid()):
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "numpy" in maps
            assert "torch" not in maps
