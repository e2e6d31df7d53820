"""The network of a client: what one machine has, and what limits of one client count."""

from functools import lru_cache
from ipaddress import IPv4Address, ip_address, ip_network


@lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    """The address, or the /64 network of an IPv6 address: one machine has all of its addresses."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address) or address.ipv4_mapped is not None:
        return host
    return str(ip_network((address, 64), strict=False))
