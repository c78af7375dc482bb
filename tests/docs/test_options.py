"""Every option has a default and a sentence, and docs/reference/options.md is what the option classes say."""

from __future__ import annotations

import importlib.util
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

from xllm_framework.config import XLLMConfig


def load_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_options", Path(__file__).with_name("write_options.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_has_a_default_and_a_sentence() -> None:
    writer = load_writer()
    for category, section in get_type_hints(XLLMConfig).items():
        docs = writer.field_docs(section)
        for option in fields(section):
            assert option.default is not MISSING, f"{category}.{option.name}"
            assert docs.get(option.name, "").endswith("."), f"{category}.{option.name}"


def test_names_are_unique_over_categories() -> None:
    names = [option.name for section in get_type_hints(XLLMConfig).values() for option in fields(section)]
    assert len(names) == len(set(names))


def test_generated_page_is_up_to_date() -> None:
    writer = load_writer()
    assert writer.TARGET.read_text(encoding="utf-8") == writer.render(), "run: python tests/docs/write_options.py"
