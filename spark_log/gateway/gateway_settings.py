"""Defines the settings of a gateway process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.access.sasl import MECHANISMS, PLAIN
from spark_log.gateway.access.tls import TlsFiles
from spark_log.metadata.address import is_loopback


@dataclass(frozen=True)
class GatewaySettings:
    """The settings of a gateway that listens at `host` and `port`. Clients see the advertised address."""

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    zone: str | None = None
    session_ms: int = 10_000
    """The time after which a killed gateway disappears from the list of brokers (broker.session.timeout.ms)."""
    frame_bytes_max: int = 100 * 1024 * 1024
    """Limit of a produce request (socket.request.max.bytes)."""
    small_frame_bytes_max: int = 1024 * 1024
    """Limit of any other request, unless its API has its own limit."""
    login_bytes_max: int = 16 * 1024
    """Limit of a frame before the client has authenticated (sasl.server.max.receive.size)."""
    fetch_bytes_max: int = 55 * 1024 * 1024
    """Limit of the records of a fetch response (fetch.max.bytes); a single batch may be larger."""
    response_bytes_max: int = 100 * 1024 * 1024
    """Limit of the memory of a response while it is made, without records."""
    memory_bytes_max: int = 128 * 1024 * 1024
    """Limit of the frames of all connections (queued.max.request.bytes). Decoded data, responses, and the partitions of
    share sessions each have another limit of this size."""
    decompressed_bytes_max: int = 128 * 1024 * 1024
    """Limit of the decompressed records of one produce request."""
    records_max: int = 1_000_000
    """Limit of the number of records of one produce request."""
    connections_max: int = 10_000
    """max.connections."""
    connections_per_ip_max: int = 1_000
    """max.connections.per.ip."""
    connections_max_idle_ms: int = 600_000
    """connections.max.idle.ms."""
    pipelined_max: int = 16
    """The number of requests of a connection that are read before the first of them is answered."""
    auto_create_topics: bool = True
    """auto.create.topics.enable."""
    partitions_of_new_topics: int = 1
    """num.partitions."""
    provisional_offsets: bool = False
    """Whether records of an open transaction are acknowledged with the offsets that they would have if it were
    committed now, instead of without offsets. Another commit may take these offsets."""
    shares_port: bool = False
    """Whether several processes listen on the port. The kernel spreads the connections over them (SO_REUSEPORT)."""
    has_lease: bool = True
    """Whether this process is in the list of brokers. Otherwise another process on the same port is."""
    tls: TlsFiles | None = None
    """The files for TLS. None means that connections are not encrypted."""
    sasl_mechanisms: tuple[str, ...] = ()
    """sasl.enabled.mechanisms. If there are none, clients do not authenticate by SASL."""
    allow_plain_without_tls: bool = False
    """Whether passwords may cross a network in the clear."""
    connections_max_reauth_ms: int = 0
    """connections.max.reauth.ms (KIP-368). 0 means that clients authenticate once."""
    acls: bool = False
    """Whether rights are checked (authorizer.class.name)."""
    super_users: frozenset[str] = frozenset()
    """super.users, such as User:admin."""
    allow_everyone_if_no_acl_found: bool = False
    """allow.everyone.if.no.acl.found."""
    unauthenticated_connections_max: int = 1_000
    authentication_timeout_s: float = 10.0
    """The time for TLS and SASL together."""
    failed_authentication_delay_ms: int = 100
    """connection.failed.authentication.delay.ms."""

    def __post_init__(self) -> None:
        unknown = [mechanism for mechanism in self.sasl_mechanisms if mechanism not in MECHANISMS]
        if unknown:
            raise InvalidConfigurationError(f"--sasl: expected {', '.join(MECHANISMS)}, got {unknown[0]!r}")
        if self.super_users and not self.acls:
            raise InvalidConfigurationError("--super-users have a meaning with --acls only")
        for principal in self.super_users:
            if not principal.startswith("User:") or principal == "User:":
                raise InvalidConfigurationError(f"--super-users: expected User:NAME, got {principal!r}")
        in_the_clear = PLAIN in self.sasl_mechanisms and self.tls is None
        if in_the_clear and not (self.allow_plain_without_tls or is_loopback(self.host)):
            raise InvalidConfigurationError(
                f"--sasl PLAIN: passwords would cross the network in the clear on {self.host}; give --tls-cert and"
                " --tls-key, use SCRAM-SHA-512, or give --allow-plain-without-tls behind a proxy that has TLS"
            )

    @property
    def security_protocol(self) -> str:
        """The value that a client has to set as security.protocol."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return f"SASL_{transport}" if self.sasl_mechanisms else transport


LIMITS: Mapping[str, str] = {
    "socket.request.max.bytes": "frame_bytes_max",
    "small.request.max.bytes": "small_frame_bytes_max",
    "sasl.server.max.receive.size": "login_bytes_max",
    "fetch.max.bytes": "fetch_bytes_max",
    "response.max.bytes": "response_bytes_max",
    "queued.max.request.bytes": "memory_bytes_max",
    "decompressed.request.max.bytes": "decompressed_bytes_max",
    "request.max.records": "records_max",
    "max.connections": "connections_max",
    "max.connections.per.ip": "connections_per_ip_max",
    "connections.max.idle.ms": "connections_max_idle_ms",
}
"""Fields of GatewaySettings by the names of configs: Kafka's names, or new ones if a broker has no such limit."""


def limits_of(configs: Sequence[str]) -> dict[str, int]:
    """Parse texts NAME=VALUE, whose names are keys of LIMITS, into settings. Raises InvalidConfigurationError."""
    settings: dict[str, int] = {}
    for text in configs:
        name, equals, value = text.partition("=")
        if not equals or name not in LIMITS:
            raise InvalidConfigurationError(f"--config {text!r}: expected NAME=VALUE with one of {', '.join(LIMITS)}")
        if not (value.isascii() and value.isdigit() and 0 < int(value) < 2**31):
            raise InvalidConfigurationError(f"--config {name}: expected a number from 1 to {2**31 - 1}, got {value!r}")
        settings[LIMITS[name]] = int(value)
    return settings


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT or [IPV6]:PORT into host and port. Raises InvalidConfigurationError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidConfigurationError(f"{option}: expected HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
