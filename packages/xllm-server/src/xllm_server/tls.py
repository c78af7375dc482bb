"""The certificate that the server shows. Knows nothing of sockets."""

from __future__ import annotations

import ssl

from xllm_framework.config import ServiceConfig
from xllm_framework.errors import InvalidConfig


def check_certificate(config: ServiceConfig) -> None:
    """Check the certificate's files, before a model is loaded; without any, the server speaks plain HTTP.

    Raises:
        InvalidConfig: one of the two is missing, or they do not fit; names the option or the file.
    """
    if not config.ssl_certfile and not config.ssl_keyfile:
        return
    if not config.ssl_certfile or not config.ssl_keyfile:
        raise InvalidConfig("TLS needs both --ssl-certfile and --ssl-keyfile.")
    for name in (config.ssl_certfile, config.ssl_keyfile):
        try:
            with open(name, "rb"):
                pass
        except OSError as error:
            raise InvalidConfig(f"The file {name} cannot be read: {error.strerror}.") from error
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except ssl.SSLError as error:
        what = f"The certificate {config.ssl_certfile} and the key {config.ssl_keyfile} cannot be used: {error.reason}."
        raise InvalidConfig(what) from error
