"""Tests marked `gpu` are skipped where there is no GPU that the kernels serve; the reason is printed."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from xllm_kernels import explain

    marked = [item for item in items if item.get_closest_marker("gpu")]
    reasons = explain("decode_attention", "cuda") if marked else []
    for item in marked if reasons else []:
        item.add_marker(pytest.mark.skip(reason="; ".join(reasons)))
