"""What a build says about itself, the instruction sets that this CPU can run, and the README's example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xllm_kernels import available_backends, explain, ops
from xllm_kernels.backends import OPERATIONS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
INSTRUCTION_SETS = ["portable", "avx2", "avx512", "avx512_bf16"]


def run_python(*arguments: str, isa: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XLLM_CPU_ISA": isa}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_backends_of_this_build() -> None:
    backends = available_backends()
    assert backends["cpu"] in INSTRUCTION_SETS
    assert backends["cuda"] in (None, "sm_90a, sm_80")
    assert backends["npu"] is None


def test_every_operation_is_listed_and_served_on_the_cpu() -> None:
    assert sorted(OPERATIONS) == sorted(ops.__all__)
    assert all(explain(op, "cpu") == [] for op in OPERATIONS)


def test_reasons() -> None:
    if available_backends()["cuda"] is None:
        assert "XLLM_CUDA=1" in explain("rms_norm", "cuda:1")[0]
    assert "linear_stream" in explain("conv3d", "cuda")[0]
    assert "XLLM_NPU=1" in explain("rms_norm", "npu")[0]
    assert len(explain("conv3d", "tpu")) == 2


def test_importing_everything_imports_no_torch() -> None:
    code = "import sys, xllm_kernels.ops, xllm_kernels.reference; sys.exit('torch' in sys.modules)"
    assert run_python("-c", code).returncode == 0


def test_unknown_instruction_set_fails_the_import() -> None:
    result = run_python("-c", "import xllm_kernels", isa="sse9")
    assert result.returncode != 0
    assert "XLLM_CPU_ISA=sse9 is none of" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_each_instruction_set_passes_the_kernel_tests(isa: str) -> None:
    probe = run_python("-c", "import xllm_kernels; print(xllm_kernels.available_backends()['cpu'])", isa=isa)
    if "needs instructions that this CPU lacks" in probe.stderr:
        pytest.skip(f"this CPU has no {isa}")
    assert probe.stdout.strip() == isa, probe.stderr
    if isa == available_backends()["cpu"]:
        return  # the tests run with it anyway
    files = [str(HERE / "test_row_kernels.py"), str(HERE / "test_paged_attention_kernel.py")]
    result = run_python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files, isa=isa)
    assert result.returncode == 0, result.stdout


def test_the_example_of_the_readme() -> None:
    readme = (ROOT / "packages/xllm-kernels/README.md").read_text()
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    result = run_python("-c", example[1])
    assert result.returncode == 0, result.stderr
    isa, mean_square = result.stdout.split()
    assert isa in INSTRUCTION_SETS
    assert abs(float(mean_square) - 1) < 1e-3
