"""Settings of a gateway process."""

from dataclasses import dataclass

from spark_log.errors import InvalidConfigurationError


@dataclass(frozen=True)
class GatewaySettings:
    """`host`, `port`: where it listens. `advertised_host`, `advertised_port`: the address that clients are told."""

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    zone: str | None = None
    session_ms: int = 10_000
    """A gateway that was killed disappears from the list of brokers after so long (broker.session.timeout.ms)."""
    frame_bytes_max: int = 100 * 1024 * 1024
    """socket.request.max.bytes, for produce requests."""
    small_frame_bytes_max: int = 1024 * 1024
    """Of all other requests."""
    connections_max: int = 10_000
    pipelined_max: int = 16
    """Requests of a connection that are read before the first of them is answered."""
    auto_create_topics: bool = True
    """auto.create.topics.enable."""
    partitions_of_new_topics: int = 1
    """num.partitions."""
    shares_port: bool = False
    """Several processes listen on the port, and the kernel spreads the connections over them (SO_REUSEPORT)."""
    has_lease: bool = True
    """False: another process on the same port is in the list of brokers."""


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT. InvalidConfigurationError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidConfigurationError(f"{option}: expected HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
