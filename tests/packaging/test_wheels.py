"""Every package builds a wheel; the light ones work alone, without torch; all six resolve together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("xllm-framework", "xllm-scheduler", "xllm-kernels", "xllm-runtime", "xllm-server", "xllm-capi")


def run(*command: str | Path, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if check:
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done


def install(environment: Path, wheels: Path, *requirements: str, dry_run: bool = False) -> str:
    run("uv", "venv", "--python", sys.executable, environment)
    command = [
        "uv",
        "pip",
        "install",
        "--no-config",
        "--python",
        environment / "bin" / "python",
        "--find-links",
        wheels,
    ]
    done = run(*command, *(["--dry-run"] if dry_run else []), *requirements, cwd=environment)
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        run(
            *("uv", "build", "--package", package, "--wheel", "--no-sources"),
            *("--find-links", folder, "-o", folder),
            cwd=ROOT,
        )
    return folder


def test_one_wheel_a_package(wheels: Path) -> None:
    names = sorted(path.name.split("-")[0] for path in wheels.glob("*.whl"))
    assert names == sorted(package.replace("-", "_") for package in PACKAGES)


@pytest.mark.parametrize("package", ["xllm-framework", "xllm-scheduler"])
def test_light_package_works_alone_without_torch(package: str, wheels: Path, tmp_path: Path) -> None:
    install(tmp_path / "venv", wheels, package)
    python = tmp_path / "venv" / "bin" / "python"
    script = (
        "import importlib, pkgutil, sys\n"
        f"root = importlib.import_module({package.replace('-', '_')!r})\n"
        "for module in pkgutil.walk_packages(root.__path__, root.__name__ + '.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "heavy = {'torch', 'transformers', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run(python, "-c", script, cwd=tmp_path)
    assert run(python, "-c", "import torch", cwd=tmp_path, check=False).returncode != 0
    if package == "xllm-scheduler":
        done = run(python, "-m", "xllm_scheduler.simulator", "--trace", "tiny", cwd=tmp_path)
        assert "TTFT" in done.stdout


def test_kernels_work_alone(wheels: Path, tmp_path: Path) -> None:
    install(tmp_path / "venv", wheels, "xllm-kernels")
    script = (
        "import numpy as np, xllm_kernels\n"
        "from xllm_kernels import ops\n"
        "x = np.ones((2, 8), np.float32)\n"
        "np.testing.assert_allclose(ops.rms_norm(x, np.ones(8, np.float32), 1e-6), x, rtol=1e-5)\n"
        "assert ops is not None and xllm_kernels.explain('rms_norm', 'cpu') == []\n"
        "assert xllm_kernels.explain('rms_norm', 'npu')\n"
    )
    run(tmp_path / "venv" / "bin" / "python", "-c", script, cwd=tmp_path)


def test_all_six_resolve_together(wheels: Path, tmp_path: Path) -> None:
    report = install(tmp_path / "venv", wheels, *PACKAGES, dry_run=True)
    for package in PACKAGES:
        assert f"+ {package}==" in report


def test_a_violated_range_between_packages_is_refused(wheels: Path, tmp_path: Path) -> None:
    run("uv", "venv", "--python", sys.executable, tmp_path / "venv")
    done = run(
        *("uv", "pip", "install", "--no-config", "--dry-run", "--python", tmp_path / "venv" / "bin" / "python"),
        *("--find-links", wheels, "xllm-scheduler", "xllm-framework>=99"),
        check=False,
    )
    assert done.returncode != 0
