"""Keyword settings of the clients: kafka-python's names, each parsed once into a frozen dataclass.

A setting of kafka-python that cannot apply here is refused by name, unless it says what is the case anyway
(`security_protocol="PLAINTEXT"`): a program that asks for TLS must not believe that it has it.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from kafka.errors import KafkaConfigurationError

from spark_log.config_values import can_be_stored

T = TypeVar("T")

_NO_SOCKET = "spark-log has no connection to a broker"
_NO_TLS = "spark-log has no connection to a broker; protect the metadata store and the storage instead"

NOT_APPLICABLE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "api_version", "bootstrap_timeout_ms", "client_dns_lookup", "connections_max_idle_ms",
            "enable_incremental_fetch_sessions", "kafka_client", "max_in_flight_requests_per_connection", "proxy_url",
            "receive_buffer_bytes", "receive_message_max_bytes", "reconnect_backoff_max_ms", "reconnect_backoff_ms",
            "selector", "send_buffer_bytes", "socket_options", "socks5_proxy",
        ),
        _NO_SOCKET,
    ),
    **dict.fromkeys(
        (
            "security_protocol", "ssl_context", "ssl_check_hostname", "ssl_cafile", "ssl_certfile", "ssl_keyfile",
            "ssl_crlfile", "ssl_password", "ssl_ciphers", "sasl_mechanism", "sasl_plain_username",
            "sasl_plain_password", "sasl_kerberos_name", "sasl_kerberos_service_name", "sasl_kerberos_domain_name",
            "sasl_oauth_token_provider",
        ),
        _NO_TLS,
    ),
    "metric_reporters": "metrics are read with metrics()",
    "metrics_num_samples": "metrics are totals since the start",
    "metrics_sample_window_ms": "metrics are totals since the start",
    "metric_group_prefix": "metrics are read with metrics()",
}  # fmt: skip
"""Settings of kafka-python 3 that no client of ours can honour, with the reason."""


def parse_settings(
    kind: type[T], given: Mapping[str, Any], theirs: Mapping[str, Any], unknown: type[Exception]
) -> tuple[str, T]:
    """(address of the cluster, settings).

    `kind` is a dataclass whose fields are the settings that apply and whose `__post_init__` checks them. `theirs` is
    kafka-python's DEFAULT_CONFIG: a setting there that has no field is refused with KafkaConfigurationError unless its
    value is that default; a setting that is in neither raises `unknown`.
    """
    address = _address(given)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    rest = {name: value for name, value in given.items() if name not in ("cluster", "bootstrap_servers")}
    strangers = sorted(name for name in rest if name not in known and name not in theirs)
    if strangers:
        raise unknown(f"Unrecognized configs: {', '.join(f'{name}={rest[name]!r}' for name in strangers)}")
    for name, value in rest.items():
        if name not in known and value != theirs[name]:
            shown = "..." if "password" in name else repr(value)
            reason = NOT_APPLICABLE.get(name, "spark-log has no such thing")
            raise KafkaConfigurationError(f"{name}={shown} cannot apply: {reason}")
    return address, kind(**{name: value for name, value in rest.items() if name in known})


def _address(given: Mapping[str, Any]) -> str:
    """`cluster`, else its alias `bootstrap_servers` (a list of one is what kafka-python takes too), else the
    environment."""
    cluster, alias = given.get("cluster"), given.get("bootstrap_servers")
    if cluster is not None and alias is not None and cluster != alias:
        raise KafkaConfigurationError("cluster and bootstrap_servers: two names of one setting, give one of them")
    address = cluster if cluster is not None else alias
    if isinstance(address, list | tuple) and len(address) == 1:
        address = address[0]
    if address is None:
        address = os.environ.get("SPARK_LOG_CLUSTER", "")
    if isinstance(address, os.PathLike):
        address = os.fspath(address)
    if not isinstance(address, str) or not address.strip():
        raise KafkaConfigurationError(
            f"cluster: expected a folder or a database URL (or environment variable SPARK_LOG_CLUSTER), got {address!r}"
        )
    return address.strip()


def check_text(name: str, value: object) -> None:
    """KafkaConfigurationError unless `value` is text that the metadata store can keep."""
    if not isinstance(value, str) or not can_be_stored(value):
        raise KafkaConfigurationError(f"{name}: expected text without NUL and lone surrogates, got {value!r}")


def check_number(name: str, value: object, least: float, *, whole: bool = True) -> None:
    """KafkaConfigurationError unless `value` is a number of at least `least`; bool is none."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        raise KafkaConfigurationError(
            f"{name}: expected a {'whole ' if whole else ''}number from {least}, got {value!r}"
        )
