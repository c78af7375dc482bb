"""`xllm-server` and `xllm-server bench` as command lines: what counts as given, what wrong usage says."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from xllm_framework.config import ServiceConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_server.cli import main, parse_config
from xllm_server.launch import address_of, bind


def test_no_arguments_give_the_defaults() -> None:
    assert parse_config([]) == XLLMConfig()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "m", "--block-size", "32", "--no-enable-prefix-cache"],
        ["--model=m", "--block_size=32", "--no-enable_prefix_cache"],
        ["m", "--block-size=32", "--no-enable-prefix-cache"],
    ],
)
def test_ways_to_write_a_flag(arguments: list[str]) -> None:
    config = parse_config(arguments)
    assert config.to_flat(only_changed=True) == {"model": "m", "block_size": 32, "enable_prefix_cache": False}


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"port": 1, "block-size": 2, "dtype": "float16"}))
    monkeypatch.setenv("XLLM_PORT", "5")
    monkeypatch.setenv("XLLM_MAX_NUM_SEQS", "6")
    config = parse_config(["--config", str(file), "--block-size", "16"])
    assert config.kv_cache.block_size == 16, "given, though it equals the default"
    assert (config.service.port, config.model.dtype, config.scheduler.max_num_seqs) == (1, "float16", 6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block-size", "many"], "--block-size"),
        (["--no-such-flag", "1"], "--no-such-flag"),
        (["--dtype", "int3"], "--dtype"),
        (["--config", "/no/such/file.json"], "/no/such/file.json"),
        (["bench", "--endpoint", "images"], "--endpoint"),
        (["bench", "--num-prompts", "0"], "num_prompts"),
        (["bench", "--base-url", "ftp://x"], "ftp://x"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, said in (("--version", "xllm-server 0"), ("--help", "--max-concurrent-requests")):
        with pytest.raises(SystemExit) as ending:
            main([flag])
        assert ending.value.code == 0
        assert said in capsys.readouterr().out


def test_port_zero_takes_a_free_port() -> None:
    with bind(ServiceConfig(port=0)) as listener:
        assert address_of(listener).startswith("http://127.0.0.1:")
        assert not address_of(listener).endswith(":0")


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=str(port)):
            bind(ServiceConfig(port=port))


@pytest.mark.parametrize("options", [{"host": "no.such.host.invalid"}, {"port": 70000}, {"port": -1}])
def test_a_wrong_address_is_named(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="address"):
        bind(ServiceConfig(**options))  # type: ignore[arg-type]
