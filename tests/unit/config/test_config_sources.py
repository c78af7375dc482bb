"""Options from a command line, a JSON file and the environment: precedence, types, ranges, and errors that name."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xllm_framework.config import XLLMConfig, load_config
from xllm_framework.config.ranges import RANGES
from xllm_framework.errors import InvalidConfig


def config_file(tmp_path, content):
    path = tmp_path / "options.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_defaults():
    config = load_config({}, None, {})
    assert config == XLLMConfig()
    assert config.to_flat(only_changed=True) == {}


@pytest.mark.parametrize(
    ("explicit", "file", "environment", "block_size"),
    [
        ({}, {}, {}, 16),
        ({}, {}, {"XLLM_BLOCK_SIZE": "2"}, 2),
        ({}, {"block_size": 3}, {"XLLM_BLOCK_SIZE": "2"}, 3),
        ({"block_size": 4}, {"block_size": 3}, {"XLLM_BLOCK_SIZE": "2"}, 4),
        ({"block_size": 16}, {"block_size": 3}, {}, 16),
        ({}, {"block-size": 5}, {}, 5),
    ],
)
def test_the_command_line_goes_before_the_file_before_the_environment(
    tmp_path, explicit, file, environment, block_size
):
    config = load_config(explicit, config_file(tmp_path, file), environment)
    assert config.kv_cache.block_size == block_size


def test_sources_are_merged_option_by_option(tmp_path):
    config = load_config(
        {"model": "m"}, config_file(tmp_path, {"policy": "prefill_first"}), {"XLLM_PORT": "9000", "XLLM_OTHER": "x"}
    )
    assert config.to_flat(only_changed=True) == {"model": "m", "policy": "prefill_first", "port": 9000}


@pytest.mark.parametrize(
    ("variable", "text", "option", "value"),
    [
        ("XLLM_BLOCK_SIZE", "32", "block_size", 32),
        ("XLLM_ENABLE_PREFIX_CACHE", "false", "enable_prefix_cache", False),
        ("XLLM_ENABLE_PREFIX_CACHE", "1", "enable_prefix_cache", True),
        ("XLLM_SHUTDOWN_TIMEOUT", "2", "shutdown_timeout", 2.0),
        ("XLLM_MODEL", "123", "model", "123"),
        ("XLLM_DTYPE", "bfloat16", "dtype", "bfloat16"),
    ],
)
def test_environment_strings_become_the_options_type(variable, text, option, value):
    result = load_config({}, None, {variable: text}).to_flat()[option]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"blok_size": 3}, "Unknown option 'blok_size' in options; did you mean 'block_size'?"),
        ({"zzz": 3}, "Unknown option 'zzz' in options."),
        ({"block_size": "16"}, "Option 'block_size' in options: Expected `int`"),
        ({"block_size": 0}, "Option 'block_size' in options: 0 is not between 1 and 4096."),
        ({"port": 70000}, "Option 'port' in options: 70000 is not between 0 and 65535."),
        ({"max_num_seqs": 0}, "Option 'max_num_seqs' in options: 0 is not a number from 1 up."),
        ({"memory_utilization": float("nan")}, "Option 'memory_utilization' in options: nan is not between"),
        ({"shutdown_timeout": float("inf")}, "Option 'shutdown_timeout' in options: inf is not a number"),
        ({"enable_prefix_cache": 1}, "Option 'enable_prefix_cache' in options: Expected `bool`"),
        ({"policy": "fifo"}, "it is one of decode_first, prefill_first, unified."),
        ({"model": None}, "Option 'model' in options: Expected `str`"),
    ],
)
def test_a_wrong_option_is_named(values, words):
    with pytest.raises(InvalidConfig) as error:
        XLLMConfig.from_flat(values)
    assert words in error.value.message


def test_an_error_names_its_source(tmp_path):
    path = config_file(tmp_path, {"block_size": -1})
    with pytest.raises(InvalidConfig, match=r"options\.json"):
        load_config({}, path, {})
    with pytest.raises(InvalidConfig, match="environment variable XLLM_BLOCK_SIZE"):
        load_config({}, None, {"XLLM_BLOCK_SIZE": "many"})
    with pytest.raises(InvalidConfig, match="command line"):
        load_config({"block_size": -1}, None, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is not valid JSON"), ("[]", "must hold one JSON object"), ("[" * 100_000, "is not valid JSON")],
)
def test_a_broken_file_is_named(tmp_path, content, words):
    with pytest.raises(InvalidConfig, match=rf"options\.json {words}"):
        load_config({}, config_file(tmp_path, content), {})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match=r"nowhere\.json cannot be read"):
        load_config({}, tmp_path / "nowhere.json", {})


def test_option_names_are_unique_and_documented_ranges_exist():
    config = XLLMConfig()
    names = [
        option.name
        for category in dataclasses.fields(config)
        for option in dataclasses.fields(getattr(config, category.name))
    ]
    assert len(names) == len(set(names))
    assert set(RANGES) <= set(names)
    numeric = {name for name, value in config.to_flat().items() if type(value) in (int, float)}
    assert numeric <= set(RANGES)


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "block_size": st.integers(1, 64),
            "model": st.text(max_size=5),
            "enable_prefix_cache": st.booleans(),
            "policy": st.sampled_from(["decode_first", "prefill_first"]),
            "shutdown_timeout": st.floats(0, 100),
        },
    )
)
def test_flat_values_survive_a_round_trip(values):
    config = XLLMConfig.from_flat(values)
    assert XLLMConfig.from_flat(config.to_flat()) == config
    assert XLLMConfig.from_flat(config.to_flat(only_changed=True)) == config
    assert {name: config.to_flat()[name] for name in values} == values
