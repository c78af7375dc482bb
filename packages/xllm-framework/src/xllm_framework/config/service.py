"""The HTTP service's options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Service options."""

    host: str = "127.0.0.1"
    """Address to bind; 0.0.0.0 serves other machines, then set an API key."""
    port: int = 8000
    """Port to bind; 0 lets the system choose and prints it."""
    api_key: str = ""
    """Key that every route but /health asks for as a bearer token; empty asks for none."""
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
