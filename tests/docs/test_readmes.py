"""The documents say things that are true: commands agree, examples run, named files exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted((ROOT / "packages").glob("xllm-*"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTS = [path for path in ROOT.rglob("*.md") if not {".venv", "build", "node_modules"} & set(path.parts)]
LINK = re.compile(r"\]\((?!http|#)([^)#]+)[^)]*\)")


def blocks(document: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(document.read_text(encoding="utf-8")) if kind == language]


@pytest.mark.parametrize("language", ["bash", "python"])
def test_chinese_readme_has_the_same_commands(language: str) -> None:
    english = blocks(ROOT / "README.md", language)
    assert english
    assert english == blocks(ROOT / "README.zh.md", language)


def test_readme_shows_the_two_commands() -> None:
    commands = "".join(blocks(ROOT / "README.md", "bash")).splitlines()
    assert "uv run xllm-server" in commands
    assert "uv run --group test pytest" in commands


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_readme_example_runs(package: Path, tmp_path: Path) -> None:
    examples = blocks(package / "README.md", "python")
    assert examples, f"{package.name}/README.md shows no Python use"
    for example in examples:
        done = subprocess.run(
            [sys.executable, "-c", example],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{example}\n{done.stderr}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_has_changelog_of_its_version(package: Path) -> None:
    version = re.search(r'^version = "([^"]+)"', (package / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"## {version[1]}" in (package / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def test_reading_order_names_files_that_exist() -> None:
    named = re.findall(r"`(packages/[^`]+\.py)`", (ROOT / "docs" / "reading-order.md").read_text())
    assert len(named) >= 6
    for path in named:
        assert (ROOT / path).is_file(), path


def test_documents_name_no_path_of_a_machine() -> None:
    for document in ROOT.glob("docs/**/*.md"):
        assert "/work/" not in document.read_text(encoding="utf-8"), document
