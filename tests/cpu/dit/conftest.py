"""Masters that several tests share: loading one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import tiny_pipelines
from support.image_servers import DIGITS, image_master
from xllm_runtime.master.dit import DiTMaster


@pytest.fixture(scope="session")
def digits() -> Iterator[DiTMaster]:
    """The example model, drawing eight images at once."""
    with image_master(DIGITS, max_requests_per_batch=8, max_num_waiting=64) as master:
        yield master


@pytest.fixture(scope="session")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiTMaster]:
    """A tiny pipeline that fills parts of images."""
    folder = tiny_pipelines.save_flux(tmp_path_factory.mktemp("fill"), "FluxFillPipeline")
    with image_master(folder, dit_max_input_pixels=128 * 128) as master:
        yield master
