"""Which device is taken, and what the CPU platform reads of its machine."""

from pathlib import Path

import pytest
import torch

import xllm_kernels
from xllm_framework.errors import InvalidConfig
from xllm_runtime.executor.selection import explain_executors
from xllm_runtime.platform import DeviceMemory, cuda, npu, select_platform, selection, selects_cpu
from xllm_runtime.platform.control_group import control_group_folders
from xllm_runtime.platform.cpu import CPUPlatform
from xllm_runtime.platform.cpu_cores import cpu_quota, physical_cores, usable_cores
from xllm_runtime.platform.cpu_features import has_native_bfloat16
from xllm_runtime.platform.cpu_memory import main_memory


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_auto_takes_the_cpu_when_there_is_no_accelerator(monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if npu.why_unavailable() is None:
        pytest.skip("this machine has an NPU")
    assert select_platform("auto").name == "cpu"
    assert "cuda is not taken" in caplog.text
    assert "npu is not taken" in caplog.text


def test_a_system_without_device_files_needs_no_torch_to_choose_the_cpu(tmp_path, monkeypatch):
    assert selects_cpu("cpu")
    assert not selects_cpu("cuda")
    assert not selects_cpu("null")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(selection, "has_torch", lambda: pytest.fail("torch is asked for"))
    assert selects_cpu("auto", tmp_path)


def test_where_a_device_file_shows_an_accelerator_torch_decides(tmp_path, monkeypatch, caplog):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(selection, "_why_unavailable", lambda kind, index: "it is asleep")
    assert selects_cpu("auto", tmp_path)
    monkeypatch.setattr(selection, "has_torch", lambda: False)
    assert selects_cpu("auto", tmp_path)
    assert "uv pip install" in caplog.text


def test_accelerators_need_torch(monkeypatch):
    monkeypatch.setattr(selection, "has_torch", lambda: False)
    with pytest.raises(InvalidConfig, match=r"device cuda cannot be used: it needs PyTorch, .*uv pip install"):
        select_platform("cuda")


@pytest.mark.parametrize("device", ["", "gpu", "cpu:0", "cuda:", "cuda:x", "null", "CPU"])
def test_other_names_are_refused(device):
    with pytest.raises(InvalidConfig, match="device must be"):
        select_platform(device)


def test_a_device_that_is_not_there_says_why(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert cuda.why_unavailable(1) is None
    with pytest.raises(InvalidConfig, match="device cuda:2 cannot be used: there are 2 GPUs"):
        select_platform("cuda:2")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(InvalidConfig, match="without CUDA"):
        select_platform("cuda")


def test_the_type_for_a_checkpoint(monkeypatch):
    platform = CPUPlatform()
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("xllm_runtime.platform.cpu.has_native_bfloat16", lambda native=native: native)
        assert platform.default_dtype(torch.bfloat16) == expected
        assert platform.default_dtype(torch.float16) == torch.float32
        assert platform.default_dtype(torch.float32) == torch.float32


def test_the_type_for_a_checkpoint_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    platform = cuda.CUDAPlatform()
    for capability, from_float32, from_bfloat16 in (
        ((8, 0), torch.bfloat16, torch.bfloat16),
        ((7, 5), torch.float32, torch.float16),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert platform.default_dtype(torch.float32) == from_float32
        assert platform.default_dtype(torch.bfloat16) == from_bfloat16
        assert platform.default_dtype(torch.float16) == torch.float16


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 sha_ni", True),
        ("flags\t\t: fpu avx2 amx_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx512f avx512_vnni", False),
        ("model name\t: bf16", False),
    ],
)
def test_native_bfloat16_is_read_from_the_flags(tmp_path, line, expected):
    table = tmp_path / "cpuinfo"
    table.write_text(f"processor\t: 0\n{line}\n")
    assert has_native_bfloat16(table) is expected
    assert not has_native_bfloat16(tmp_path / "absent")


def test_hardware_threads_of_one_core_count_once(tmp_path):
    for cpu, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")):
        write(tmp_path / f"cpu{cpu}" / "topology", thread_siblings_list=f"{siblings}\n")
    assert physical_cores({0, 1, 4, 5}, tmp_path) == 2
    assert physical_cores({0, 4}, tmp_path) == 1
    assert physical_cores({0, 9}, tmp_path) == 2


def test_the_tightest_cpu_quota_counts(tmp_path):
    version2 = write(tmp_path / "inner", cpu__max="350000 100000\n")
    unlimited = write(tmp_path / "outer", cpu__max="max 100000\n")
    version1 = write(tmp_path / "old", cpu__cfs_quota_us="150000\n", cpu__cfs_period_us="100000\n")
    assert cpu_quota([version2, unlimited]) == 4
    assert cpu_quota([version2, version1]) == 2
    assert cpu_quota([unlimited, tmp_path / "absent"]) > 1024
    assert cpu_quota([]) > 1024


def test_threads_are_set_for_torch_and_for_kernels():
    before = torch.get_num_threads()
    try:
        assert CPUPlatform().set_threads(2) == 2
        assert (torch.get_num_threads(), xllm_kernels.get_num_threads()) == (2, 2)
        assert CPUPlatform().set_threads(0) == usable_cores()
        with pytest.raises(InvalidConfig, match="threads"):
            CPUPlatform().set_threads(5000)
    finally:
        CPUPlatform().set_threads(before)


def test_memory_is_cut_to_the_limits_of_the_control_groups(tmp_path):
    table = tmp_path / "meminfo"
    table.write_text("MemTotal:  1000 kB\nMemFree:   100 kB\nMemAvailable:   600 kB\n")
    assert main_memory(table, []) == DeviceMemory(1000 * 1024, 600 * 1024)
    limited = write(
        tmp_path / "v2",
        memory__max="500000\n",
        memory__current="300000\n",
        memory__stat="anon 5\ninactive_file 50000\n",
    )
    free = write(tmp_path / "free", memory__max="max\n", memory__current="9\n", memory__stat="inactive_file 0\n")
    assert main_memory(table, [free, limited]) == DeviceMemory(500_000, 250_000)
    assert main_memory(table, [free]) == DeviceMemory(1000 * 1024, 600 * 1024)
    old = write(
        tmp_path / "v1",
        memory__limit_in_bytes="400000",
        memory__usage_in_bytes="400000",
        memory__stat="inactive_file 1\ntotal_inactive_file 1000\n",
    )
    assert main_memory(table, [limited, old]) == DeviceMemory(400_000, 1000)
    assert main_memory(tmp_path / "absent", []).total_bytes > 0


def test_control_groups_are_found_in_both_versions(tmp_path):
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    inner = mount / "slice" / "service"
    inner.mkdir(parents=True)
    membership.write_text("0::/slice/service\n")
    assert control_group_folders("memory", membership, mount) == [inner, inner.parent, mount]
    membership.write_text("0::/somewhere/else\n")
    assert control_group_folders("memory", membership, mount) == [mount]
    (mount / "memory" / "job").mkdir(parents=True)
    membership.write_text("4:cpu,cpuacct:/job\n7:memory:/job\n")
    assert control_group_folders("memory", membership, mount) == [mount / "memory" / "job", mount / "memory"]
    assert control_group_folders("cpu", membership, mount) == []
    assert control_group_folders("cpu", tmp_path / "absent", mount) == []


def test_memory_of_this_machine_is_plausible():
    memory = CPUPlatform().memory()
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_executors_that_cannot_serve_say_why():
    reasons = explain_executors("cpu")
    assert list(reasons)[-1] == "eager"
    assert reasons["eager"] is None
    assert all(reasons[name] for name in ("cuda_graph", "npu_graph"))
    assert explain_executors("cuda")["cuda_graph"] != explain_executors("npu")["cuda_graph"]
