"""Logs as JSON: one object a line, whatever the message holds."""

from __future__ import annotations

import json
import logging
import sys

from xllm_runtime.log_format import JsonFormatter


def test_a_record_is_one_line_of_json() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "f.py", 1, 'it %s\n"x"', ("failed",), sys.exc_info())
    record.fields = {"status": 500}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    content = json.loads(line)
    assert (content["level"], content["logger"], content["status"]) == ("error", "a.b", 500)
    assert content["message"] == 'it failed\n"x"'
    assert content["traceback"].endswith("ValueError: two\nlines")
