"""Parses names and values of topic configs as users write them, with other names, and hints for unknown ones."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from spark_log.config.values import ValueType
from spark_log.errors import InvalidConfigurationError

V = TypeVar("V")

OTHER_NAMES = {"retired.file.retention.ms": "file.delete.delay.ms"}
"""Other names that are accepted for configs, and may also be stored, each with the name in `definitions`."""


def canonical(values: Mapping[str, V]) -> dict[str, V]:
    """Return `values` under the names in `definitions`.

    Raise InvalidConfigurationError if a config is given under two names.
    """
    named: dict[str, V] = {}
    for name, value in values.items():
        its_name = OTHER_NAMES.get(name, name)
        if its_name in named:
            raise InvalidConfigurationError(f"config {its_name!r} is given twice, as {name!r} too")
        named[its_name] = value
    return named


WITHOUT_MEANING = {
    "compression.lz4.level": "lz4 is used at its fastest level",
    "follower.replication.throttled.replicas": "a reassignment takes its throttle as an argument",
    "index.interval.bytes": "the metadata store is the index",
    "leader.replication.throttled.replicas": "a reassignment takes its throttle as an argument",
    "local.retention.ms": "log dirs may be object stores; there is one tier",
    "local.retention.bytes": "log dirs may be object stores; there is one tier",
    "max.decompressed.message.bytes": "the gateway's config decompressed.request.max.bytes limits what records become",
    "message.downconversion.enable": "there is one message format",
    "message.format.version": "there is one message format",
    "message.timestamp.difference.max.ms": "see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    "preallocate": "segment files are written whole",
    "remote.copy.lag.bytes": "log dirs may be object stores; there is one tier",
    "remote.copy.lag.ms": "log dirs may be object stores; there is one tier",
    "remote.storage.enable": "log dirs may be object stores; there is one tier",
    "segment.index.bytes": "the metadata store is the index",
    "segment.jitter.ms": "sealing is spread by the coordinator",
}
"""Kafka's configs that have no meaning here, with the reasons. They are refused, not ignored."""


def hint(name: object, config_names: Collection[str]) -> str:
    """Return the end of the error message about an unknown name."""
    if not isinstance(name, str):
        return ": expected text"
    if name in WITHOUT_MEANING:
        return f": a config of Kafka that has no meaning here ({WITHOUT_MEANING[name]})"
    near = difflib.get_close_matches(name.lower().replace("_", "."), config_names, n=3, cutoff=0.6)
    return f". Did you mean {' or '.join(near)}?" if near else f". Known are {', '.join(config_names)}"


def parse(name: str, text: object, value_type: ValueType) -> Any:
    """Return the value of a config. Raise InvalidConfigurationError that names the config and the expected values."""
    if not isinstance(text, str):
        raise InvalidConfigurationError(
            f"Invalid value {text!r} for topic config {name!r}: expected text ({value_type.expected}), "
            f"not {type(text).__name__}"
        )
    try:
        return value_type.parse(text)
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        shown = repr(text if len(text) <= 100 else text[:100] + "…")
        raise InvalidConfigurationError(
            f"Invalid value {shown} for topic config {name!r}: expected {value_type.expected}{reason}"
        ) from None
