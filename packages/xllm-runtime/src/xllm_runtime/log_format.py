"""How this process and the engine's write their logs: for people, or one JSON object a line. Knows no messages."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Literal


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, the traceback if any, and `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        content: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= getattr(record, "fields", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def configure_logging(level: str, log_format: Literal["text", "json"]) -> None:
    """Send all logs of this process to standard error, from `level` (debug, info, warning, error) up."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
