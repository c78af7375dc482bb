"""Packed copies of weights: kept, taken, refused when the source changed, and never needed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from support.loaded_models import model_files
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import XLLMConfig
from xllm_framework.model import load_model_args
from xllm_runtime.weights import packed_copy
from xllm_runtime.worker import native_loading
from xllm_runtime.worker.native_loading import load_decoder


@pytest.fixture
def checkpoint(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(packed_copy, "MIN_BYTES", 0)
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_checkpoint("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def load(folder: Path, cache: Path, **options: object) -> np.ndarray:
    """Return the logits of three tokens, once the copy is written."""
    files = model_files(folder)
    config = XLLMConfig.from_flat({"cache_dir": str(cache), "dtype": "float32", **options})
    decoder = load_decoder(config, files, load_model_args(files), 64)
    for thread in threading.enumerate():
        if thread.name == "xllm-packed-copy":
            thread.join()
    decoder.allocate_kv_cache(2, 16, "f32")
    positions = np.arange(3, dtype=np.int32)
    ends, lengths = np.array([0, 3], np.int32), np.array([3], np.int32)
    slots = positions.astype(np.int64) + 16
    return decoder.forward(positions, positions, slots, ends, lengths, np.ones((1, 1), np.int32), slots - 16)


def fail_to_read(*_: object) -> None:
    raise AssertionError("the checkpoint is read again")


def test_the_second_start_takes_the_copy(checkpoint, tmp_path, monkeypatch):
    first = load(checkpoint, tmp_path)
    assert len(list((tmp_path / "packed").iterdir())) == 1
    monkeypatch.setattr(native_loading, "raw_weights", fail_to_read)
    assert np.array_equal(load(checkpoint, tmp_path), first)


def test_each_format_has_its_own_copy(checkpoint, tmp_path):
    load(checkpoint, tmp_path)
    load(checkpoint, tmp_path, quantization="int8")
    assert len(list((tmp_path / "packed").iterdir())) == 2


def test_a_changed_source_is_packed_again_and_the_old_copy_goes(checkpoint, tmp_path):
    load(checkpoint, tmp_path)
    [old] = (tmp_path / "packed").iterdir()
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4:] = np.float32(3.0).tobytes()
    weights.write_bytes(content)
    os.utime(weights, ns=(1, 1))
    load(checkpoint, tmp_path)
    [new] = (tmp_path / "packed").iterdir()
    assert new != old


def test_a_cut_copy_is_packed_again(checkpoint, tmp_path):
    first = load(checkpoint, tmp_path)
    [copy] = (tmp_path / "packed").iterdir()
    copy.write_bytes(copy.read_bytes()[:-100])
    assert np.array_equal(load(checkpoint, tmp_path), first)


def test_a_folder_that_cannot_be_written_changes_nothing(checkpoint, tmp_path):
    (tmp_path / "packed").write_text("in the way")
    assert np.isfinite(load(checkpoint, tmp_path)).all()


def test_small_models_are_not_kept(tmp_path):
    load(tiny_checkpoint("llama"), tmp_path)
    assert not (tmp_path / "packed").exists()
