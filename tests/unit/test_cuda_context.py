"""A GPU's context that is begun before torch is there: only where one is likely, and never an error."""

from __future__ import annotations

import pytest

from xllm_runtime.platform.cuda_context import begin_context, likely_gpu, retain_context


@pytest.mark.parametrize(
    ("device", "index"), [("cuda", 0), ("cuda:3", 3), ("cpu", None), ("npu:1", None), ("null", None), ("cuda:x", None)]
)
def test_named_devices(tmp_path, device, index):
    assert likely_gpu(device, tmp_path) == index


def test_auto_looks_for_the_drivers_file(tmp_path):
    assert likely_gpu("auto", tmp_path) is None
    assert begin_context("auto", tmp_path) is None
    (tmp_path / "nvidiactl").touch()
    assert likely_gpu("auto", tmp_path) is None
    (tmp_path / "nvidia0").touch()
    assert likely_gpu("auto", tmp_path) == 0


class Driver:
    """Records calls; `fails` is the name of one that does."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str):
        def call(*args: object) -> int:
            self.calls.append(name)
            return 100 if name == self._fails else 0

        return call


@pytest.mark.parametrize("fails", ["", "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_calls_end_with_the_first_that_fails(fails):
    driver, names = Driver(fails), ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert retain_context(0, lambda name: driver) == (not fails)
    assert driver.calls == names[: names.index(fails) + 1 if fails else 3]


def test_a_machine_without_the_driver():
    def load(name: str):
        raise OSError(name)

    assert not retain_context(0, load)
