"""Which network addresses media may come from. Knows nothing of HTTP.

A name is resolved once, every address it has is checked, and the connection goes to a checked address: a name that
resolves to something else a moment later (DNS rebinding) changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket

from xllm_framework.errors import InvalidRequest

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: IPAddress) -> bool:
    """Whether an address belongs to the public internet, also where it wraps an IPv4 address in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if wrapped is None and address in _NAT64:
            wrapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(wrapped)
    return address.is_global and not address.is_multicast


def checked_addresses(host: str, port: int, place: str) -> list[str]:
    """Return the addresses of `host`.

    Raises:
        InvalidRequest: it has none, or one of them is not public; names `place`, and never what it resolved to.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"{place} names the host {host!r}, which is not known.", "messages") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(is_public(ipaddress.ip_address(address.split("%")[0])) for address in addresses):
        raise InvalidRequest(
            f"{place} names the host {host!r}, which is not public; the server fetches from nothing else "
            "(allow_private_media).",
            "messages",
        )
    return addresses
