"""Finds the network of a client, so that limits count all addresses of one machine together."""

from functools import lru_cache
from ipaddress import IPv4Address, ip_address, ip_network


@lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    """Return the address, or the /64 network of an IPv6 address, because one machine has all addresses of a /64."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address) or address.ipv4_mapped is not None:
        return host
    return str(ip_network((address, 64), strict=False))
