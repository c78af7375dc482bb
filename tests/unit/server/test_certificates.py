"""TLS options: what is wrong with a certificate is said before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from xllm_framework.config import ServiceConfig
from xllm_framework.errors import InvalidConfig
from xllm_server.tls import check_certificate


def test_no_certificate_is_fine() -> None:
    check_certificate(ServiceConfig())


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    text, missing = tmp_path / "text.pem", tmp_path / "missing.pem"
    text.write_text("no certificate")
    for certificate, key, said in (
        (str(text), "", "--ssl-keyfile"),
        ("", str(text), "--ssl-certfile"),
        (str(missing), str(text), "missing.pem"),
        (str(text), str(missing), "missing.pem"),
        (str(text), str(text), "text.pem"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            check_certificate(ServiceConfig(ssl_certfile=certificate, ssl_keyfile=key))
