"""Parses the keyword settings of the clients, which have kafka-python's names, into frozen dataclasses.

Each setting of kafka-python is of one of three kinds:
- *applied*: a field of the client's dataclass.
- *no effect*: it tunes something that spark-log does not have, such as connections to brokers. This is logged once.
- *refused*: the program would not get what it asks for, such as TLS.
A setting whose value is kafka-python's default (`security_protocol="PLAINTEXT"`) is always accepted.
"""

import difflib
import inspect
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from kafka.errors import KafkaConfigurationError

from spark_log.config.values import INT32_MAX, can_be_stored
from spark_log.metadata.address import broker_refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NO_SOCKET = "spark-log has no connection to a broker"
_NO_TLS = "spark-log has no connection to a broker; protect the metadata store and the storage instead"
_NO_PROXY = "connections to the metadata store and the storage would not go through it"

NO_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "api_version", "api_version_auto_timeout_ms", "bootstrap_timeout_ms", "bootstrap_topics_filter",
            "client_dns_lookup", "connections_max_idle_ms", "enable_incremental_fetch_sessions",
            "max_in_flight_requests_per_connection", "receive_buffer_bytes", "receive_message_max_bytes",
            "reconnect_backoff_max_ms", "reconnect_backoff_ms", "selector", "send_buffer_bytes",
            "sock_chunk_buffer_count", "sock_chunk_bytes", "socket_options",
        ),
        _NO_SOCKET,
    ),
    "check_crcs": "checksums are always verified",
    "legacy_iterator": "there is one iterator",
    "metric_group_prefix": "metrics are read with metrics()",
    "metric_reporters": "metrics are read with metrics()",
    "metrics_num_samples": "metrics are totals since the start",
    "metrics_sample_window_ms": "metrics are totals since the start",
    "retry_backoff_ms": "transactions of the metadata store are repeated at intervals of their own",
}  # fmt: skip
"""Settings of kafka-python 2 and 3 that have no effect, with the reason."""

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "security_protocol", "ssl_context", "ssl_check_hostname", "ssl_cafile", "ssl_certfile", "ssl_keyfile",
            "ssl_crlfile", "ssl_password", "ssl_ciphers", "sasl_mechanism", "sasl_plain_username",
            "sasl_plain_password", "sasl_kerberos_name", "sasl_kerberos_service_name", "sasl_kerberos_domain_name",
            "sasl_oauth_token_provider",
        ),
        _NO_TLS,
    ),
    "kafka_client": _NO_SOCKET,
    "proxy_url": _NO_PROXY,
    "socks5_proxy": _NO_PROXY,
}  # fmt: skip
"""Settings of kafka-python that are refused, with the reason."""

_ONLY_IN_2 = (
    "api_version_auto_timeout_ms", "bootstrap_topics_filter", "legacy_iterator", "sock_chunk_buffer_count",
    "sock_chunk_bytes",
)  # fmt: skip
_SECRET = ("password", "proxy", "token", "secret")

_logged: set[str] = set()
"""Settings without effect that this process has logged."""


def parse_settings(
    kind: type[T], configs: Mapping[str, Any], theirs: Mapping[str, Any], unknown: type[Exception]
) -> tuple[str, T]:
    """Return (address of the cluster, settings).

    `kind` is a dataclass whose fields are the settings that apply and whose `__post_init__` checks them. `theirs` is
    kafka-python's DEFAULT_CONFIG. All refused settings are in one error. Its class is `unknown` if one of them is
    neither spark-log's nor kafka-python's, and otherwise KafkaConfigurationError.
    """
    own_names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    others = {name: configs[name] for name in configs if name not in (*own_names, "cluster", "bootstrap_servers")}
    unrecognized = [name for name in others if name not in theirs and name not in _ONLY_IN_2 and name not in REFUSED]
    changed = {
        name: value
        for name, value in others.items()
        if name not in unrecognized and value is not None and value != theirs.get(name)
    }
    problems = [_unknown_text(others, unrecognized, own_names | theirs.keys())] if unrecognized else []
    problems += _refused_texts(changed)
    try:
        address = _address(configs)
    except KafkaConfigurationError as error:
        problems.append(str(error.args[0]))
    else:
        refusal = broker_refusal(address) if problems else None  # without problems, Cluster.open raises it
        problems += [refusal] if refusal is not None else []
    if problems:
        raise (unknown if unrecognized else KafkaConfigurationError)("\n".join(problems))
    for name in changed:
        if name not in _logged:
            _logged.add(name)
            logger.warning("%s has no effect here: %s", _shown(name, changed[name]), NO_EFFECT[name])
    return address, kind(**{name: configs[name] for name in configs if name in own_names})


def _unknown_text(given: Mapping[str, Any], unrecognized: list[str], names: set[str]) -> str:
    texts = []
    for name in sorted(unrecognized):
        near = difflib.get_close_matches(name, sorted(names), n=1)
        texts.append(_shown(name, given[name]) + (f" (did you mean {near[0]}?)" if near else ""))
    return f"Unrecognized configs: {', '.join(texts)}"


def _refused_texts(changed: Mapping[str, Any]) -> list[str]:
    """Return, for each reason, one line that names the settings refused for it."""
    by_reason: dict[str, list[str]] = {}
    for name, value in changed.items():
        if name not in NO_EFFECT:
            by_reason.setdefault(REFUSED.get(name, "spark-log has no such feature"), []).append(_shown(name, value))
    return [f"{', '.join(shown)} cannot apply: {reason}" for reason, shown in by_reason.items()]


def _shown(name: str, value: object) -> str:
    return f"{name}={'...' if any(word in name for word in _SECRET) else repr(value)}"


def _address(configs: Mapping[str, Any]) -> str:
    """Return `cluster` or its alias `bootstrap_servers` (text, or a list of one text), or the environment's address.

    Raises KafkaConfigurationError if there is no address.
    """
    cluster, alias = configs.get("cluster"), configs.get("bootstrap_servers")
    if cluster is not None and alias is not None and cluster != alias:
        raise KafkaConfigurationError("cluster and bootstrap_servers: two names of one setting; give only one")
    address = cluster if cluster is not None else alias
    if isinstance(address, list | tuple) and len(address) == 1:
        address = address[0]
    elif isinstance(address, list | tuple) and all(isinstance(each, str) for each in address):
        address = ",".join(address)  # of Kafka brokers, which Address refuses
    if address is None:
        address = os.environ.get("SPARK_LOG_CLUSTER") or os.environ.get("SPARK_LOG_CLUSTER_FILE", "")
    if isinstance(address, os.PathLike):
        address = os.fspath(address)
    if not isinstance(address, str) or not address.strip():
        raise KafkaConfigurationError(
            f"cluster: expected a folder or a database URL (or environment variable SPARK_LOG_CLUSTER), got {address!r}"
        )
    return address.strip()


def takes_headers(method: Any) -> bool:
    """Whether the method accepts (topic, headers, data). Methods for kafka-python 2 accept (topic, data)."""
    try:
        inspect.signature(method).bind("topic", [], b"")
    except TypeError:
        return False
    return True


def check_text(name: str, value: object) -> None:
    """Raise KafkaConfigurationError unless `value` is text that the metadata store can keep."""
    if not isinstance(value, str) or not can_be_stored(value):
        raise KafkaConfigurationError(f"{name}: expected text without NUL and lone surrogates, got {value!r}")


def check_number(name: str, value: object, least: float, *, whole: bool = True) -> None:
    """Raise KafkaConfigurationError unless `value` is a number >= `least` (with `whole` an integer), and not a bool."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        raise KafkaConfigurationError(
            f"{name}: expected a {'whole ' if whole else ''}number from {least}, got {value!r}"
        )


def limit_times(settings: object, names: Iterable[str]) -> None:
    """Replace longer times of a frozen dataclass by 2^31 - 1 ms, which are 24 days: programs mean "without end" by
    infinity or 2^63 - 1, and Python's locks refuse to wait that long.
    """
    for name in names:
        object.__setattr__(settings, name, min(getattr(settings, name), INT32_MAX))
