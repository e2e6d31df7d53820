"""Settings of a gateway process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.access.sasl import MECHANISMS, PLAIN
from spark_log.gateway.access.tls import TlsFiles
from spark_log.metadata.address import is_loopback


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
    """Of all other requests, unless their API has a lower limit."""
    login_bytes_max: int = 16 * 1024
    """sasl.server.max.receive.size: of a frame before the client has authenticated."""
    fetch_bytes_max: int = 55 * 1024 * 1024
    """fetch.max.bytes: records of a response, or one batch."""
    response_bytes_max: int = 100 * 1024 * 1024
    """Memory of a response while it is made, apart from records."""
    memory_bytes_max: int = 128 * 1024 * 1024
    """queued.max.request.bytes: frames of all connections; what is decoded, and the responses, have as much each."""
    decompressed_bytes_max: int = 128 * 1024 * 1024
    """Records of one produce request, decompressed."""
    records_max: int = 1_000_000
    """Of one produce request."""
    connections_max: int = 10_000
    """max.connections."""
    connections_per_ip_max: int = 1_000
    """max.connections.per.ip."""
    connections_max_idle_ms: int = 600_000
    """connections.max.idle.ms."""
    pipelined_max: int = 16
    """Requests of a connection that are read before the first of them is answered."""
    auto_create_topics: bool = True
    """auto.create.topics.enable."""
    partitions_of_new_topics: int = 1
    """num.partitions."""
    provisional_offsets: bool = False
    """Records of an open transaction are acknowledged with the offsets that they would have if it were committed now,
    instead of none. Another commit may take these offsets."""
    shares_port: bool = False
    """Several processes listen on the port, and the kernel spreads the connections over them (SO_REUSEPORT)."""
    has_lease: bool = True
    """False: another process on the same port is in the list of brokers."""
    tls: TlsFiles | None = None
    """None: connections are not encrypted."""
    sasl_mechanisms: tuple[str, ...] = ()
    """sasl.enabled.mechanisms; empty: clients do not authenticate by SASL."""
    allow_plain_without_tls: bool = False
    """Passwords may cross a network in the clear."""
    connections_max_reauth_ms: int = 0
    """connections.max.reauth.ms (KIP-368); 0: clients authenticate once."""
    acls: bool = False
    """Rights are checked (authorizer.class.name)."""
    super_users: frozenset[str] = frozenset()
    """super.users, such as User:admin."""
    allow_everyone_if_no_acl_found: bool = False
    """allow.everyone.if.no.acl.found."""
    unauthenticated_connections_max: int = 1_000
    authentication_timeout_s: float = 10.0
    """For TLS and SASL together."""
    failed_authentication_delay_ms: int = 100
    """connection.failed.authentication.delay.ms."""

    def __post_init__(self) -> None:
        unknown = [each for each in self.sasl_mechanisms if each not in MECHANISMS]
        if unknown:
            raise InvalidConfigurationError(f"--sasl: expected {', '.join(MECHANISMS)}, got {unknown[0]!r}")
        if self.super_users and not self.acls:
            raise InvalidConfigurationError("--super-users have a meaning with --acls only")
        for each in self.super_users:
            if not each.startswith("User:") or each == "User:":
                raise InvalidConfigurationError(f"--super-users: expected User:NAME, got {each!r}")
        in_the_clear = PLAIN in self.sasl_mechanisms and self.tls is None
        if in_the_clear and not (self.allow_plain_without_tls or is_loopback(self.host)):
            raise InvalidConfigurationError(
                f"--sasl PLAIN: passwords would cross the network in the clear on {self.host}; give --tls-cert and"
                " --tls-key, use SCRAM-SHA-512, or give --allow-plain-without-tls behind a proxy that has TLS"
            )

    @property
    def security_protocol(self) -> str:
        """Kafka's name of what a client has to set."""
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
"""Settings of GatewaySettings by the names of configs: Kafka's, and our own where a broker has no such limit."""


def limits_of(configs: Sequence[str]) -> dict[str, int]:
    """The settings in texts NAME=VALUE, the names as in LIMITS. InvalidConfigurationError."""
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
    """Host and port of HOST:PORT or [IPV6]:PORT. InvalidConfigurationError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidConfigurationError(f"{option}: expected HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
