"""The HTTP service's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Service options."""

    host: str = "127.0.0.1"
    """Address to bind; 0.0.0.0 serves other machines, then set an API key."""
    port: int = 8000
    """Port to bind; 0 lets the system choose and prints it."""
    api_key: str = ""
    """Key that every route but /health asks for as a bearer token; empty asks for none."""
    control_key: str = ""
    """Key of the control routes (/pause, /resume, ...), which the API key does not open; it opens the others too. Empty shuts
    them when there is an API key."""
    allowed_origins: str = ""
    """Web sites whose pages may call this server, as https://a.example,https://b.example; * is every site, empty its own page
    only."""
    ssl_certfile: str = ""
    """PEM file with the certificate chain; with it and `ssl_keyfile` the server speaks TLS."""
    ssl_keyfile: str = ""
    """PEM file with the certificate's private key."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Request bodies above this are refused with 413."""
    max_concurrent_requests: int = 1024
    """Requests in flight at most; more are refused with 429."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests get to end after SIGTERM."""
    num_request_handling_threads: int = 2
    """Threads that apply templates and tokenise."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """text is for people, json writes one object a line."""
    log_requests: bool = False
    """Log a line for each answered request: ids, sizes and times, never contents."""
    otlp_traces_endpoint: str = ""
    """URL of an OpenTelemetry collector that gets a trace of each request, as http://localhost:4318/v1/traces; empty makes
    none."""
    step_timeout: float = 0.0
    """Seconds after which a step that has not ended makes /health answer 503; 0 waits for ever."""
