"""Merges option values from a command line, a JSON file and the environment into one `XLLMConfig`."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from xllm_framework.config.dit import DiTConfig
from xllm_framework.config.execution import ExecutionConfig
from xllm_framework.config.kv_cache import KVCacheConfig
from xllm_framework.config.load import LoadConfig
from xllm_framework.config.model import ModelConfig
from xllm_framework.config.multimodal import MultimodalConfig
from xllm_framework.config.parallel import ParallelConfig
from xllm_framework.config.ranges import range_error
from xllm_framework.config.rec import RecConfig
from xllm_framework.config.scheduler import SchedulerConfig
from xllm_framework.config.service import ServiceConfig
from xllm_framework.errors import InvalidConfig

ENVIRONMENT_PREFIX = "XLLM_"


@dataclass(frozen=True, slots=True, kw_only=True)
class XLLMConfig:
    """All options, by category. Field names are unique over all categories, so that a flat name is enough everywhere."""

    model: ModelConfig = field(default_factory=ModelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    kv_cache: KVCacheConfig = field(default_factory=KVCacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    multimodal: MultimodalConfig = field(default_factory=MultimodalConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)
    rec: RecConfig = field(default_factory=RecConfig)
    dit: DiTConfig = field(default_factory=DiTConfig)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any], source: str = "options") -> XLLMConfig:
        """Build from flat field names, as `{"model": "path", "block_size": 32}`.

        Raises:
            InvalidConfig: an unknown name, or a value of the wrong type or out of range; names the option and `source`.
        """
        return _build({name: (value, source, True) for name, value in values.items()})

    def to_flat(self, *, only_changed: bool = False) -> dict[str, Any]:
        """Return flat field names and values; `only_changed` leaves out defaults."""
        flat: dict[str, Any] = {}
        for category in fields(self):
            section = getattr(self, category.name)
            for option in fields(section):
                value = getattr(section, option.name)
                if not only_changed or value != option.default:
                    flat[option.name] = value
        return flat


_CATEGORIES: dict[str, Any] = {
    "model": ModelConfig,
    "load": LoadConfig,
    "kv_cache": KVCacheConfig,
    "scheduler": SchedulerConfig,
    "parallel": ParallelConfig,
    "execution": ExecutionConfig,
    "multimodal": MultimodalConfig,
    "service": ServiceConfig,
    "rec": RecConfig,
    "dit": DiTConfig,
}


def load_config(
    explicit: Mapping[str, Any],
    config_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    is_text: bool = False,
) -> XLLMConfig:
    """Merge explicit command-line values over a JSON file's over the environment's over the defaults.

    `is_text` says that explicit values are strings which may stand for numbers, as the environment's are.

    Raises:
        InvalidConfig: an unknown option, a wrong type or value, or a file that is no JSON object; the message names the source.
    """
    merged: dict[str, tuple[Any, str, bool]] = {}
    for name in _category_of():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            merged[name] = (environment[variable], f"environment variable {variable}", False)
    if config_file is not None:
        for name, value in _read_json(config_file).items():
            merged[name.replace("-", "_")] = (value, str(config_file), True)
    for name, value in explicit.items():
        merged[name] = (value, "command line", not is_text)
    return _build(merged)


def _category_of() -> dict[str, str]:
    """Return option name -> category name."""
    return {option.name: name for name, section in _CATEGORIES.items() for option in fields(section)}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"The config file {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"The config file {path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise InvalidConfig(f"The config file {path} must hold one JSON object of option names and values.")
    return content


def _build(values: Mapping[str, tuple[Any, str, bool]]) -> XLLMConfig:
    category_of = _category_of()
    sections: dict[str, dict[str, Any]] = {}
    for name, (value, source, strict) in values.items():
        if name not in category_of:
            raise InvalidConfig(f"Unknown option {name!r} in {source}{_suggestion(name, category_of)}")
        category = category_of[name]
        sections.setdefault(category, {})[name] = _checked(_CATEGORIES[category], name, value, source, strict)
    return XLLMConfig(**{name: _CATEGORIES[name](**section) for name, section in sections.items()})


def _suggestion(name: str, known: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]!r}?" if similar else "."


def _checked(section: Any, name: str, value: Any, source: str, strict: bool) -> Any:
    """Return `value` in its option's type; a string from the environment (not `strict`) may stand for a number."""
    try:
        result = getattr(msgspec.convert({name: value}, section, strict=strict), name)
    except msgspec.ValidationError as error:
        hint = get_type_hints(section)[name]
        choices = f"; it is one of {', '.join(get_args(hint))}" if get_origin(hint) is Literal else ""
        what = str(error).split(" - at")[0]
        raise InvalidConfig(f"Option {name!r} in {source}: {what}{choices}.") from error
    wrong = range_error(name, result)
    if wrong is not None:
        raise InvalidConfig(f"Option {name!r} in {source}: {wrong}.")
    return result
