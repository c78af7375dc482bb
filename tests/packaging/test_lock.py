"""The lock and the project files name the default public index and nothing of the machine that wrote them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_lock_names_one_public_index() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    registries = {package["source"]["registry"] for package in lock["package"] if "registry" in package["source"]}
    assert len(registries) == 1
    assert next(iter(registries)).startswith("https://")


def test_lock_holds_no_local_path_but_the_members() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    for package in lock["package"]:
        for kind in ("editable", "directory", "path", "virtual"):
            place = package["source"].get(kind)
            assert place is None or not place.startswith("/"), package["name"]


def test_no_member_imports_a_member_by_exact_version() -> None:
    for pyproject in (ROOT / "packages").glob("*/pyproject.toml"):
        for requirement in tomllib.loads(pyproject.read_text())["project"].get("dependencies", []):
            if requirement.startswith("xllm-"):
                assert re.fullmatch(r"xllm-[a-z]+>=[\d.]+,<[\d.]+", requirement), requirement
