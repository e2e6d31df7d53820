"""Defines the configs of groups (Kafka's config resource GROUP), each documented where it is defined.

A share group uses, in this order, its own config, the cluster setting `group.<name>`, and the default. The cluster has
limits for some (`group.share.min.*`, `group.share.max.*`).
"""

import contextlib
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from spark_log.config.cluster_settings import ClusterSettings
from spark_log.config.definition import ConfigDefinition, config
from spark_log.config.values import INT32_MAX, INT64_MAX, Boolean, Choice, Integer, Text, ValueType
from spark_log.errors import InvalidConfigurationError

_DURATION = re.compile(
    r"P(?:(?P<d>[0-9]{1,6})D)?(?:T(?:(?P<h>[0-9]{1,8})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,12}(?:\.[0-9]{1,9})?)S)?)?"
)


def duration_ms(policy: str) -> int | None:
    """Return the duration of a policy by_duration:PnDTnHnMn.nS (KIP-1106), or None for earliest and latest."""
    found = _DURATION.fullmatch(policy.removeprefix("by_duration:"))
    if not policy.startswith("by_duration:") or found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.group("d", "h", "m", "s"))
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


@dataclass(frozen=True)
class OffsetReset(ValueType):
    """The type of an offset reset: earliest, latest or by_duration:PnDTnHnMn.nS."""

    kind: str = "string"

    @property
    def expected(self) -> str:
        return "latest, earliest or by_duration:PnDTnHnMn.nS"

    def parse(self, text: str) -> str:
        word = text.lower() if text.lower() in ("earliest", "latest") else text
        if word not in ("earliest", "latest") and not duration_ms(word):
            raise ValueError
        return word


@dataclass(frozen=True)
class GroupConfig:
    """The configs of one group, typed. Field names are the config names with `_` for `.`."""

    share_record_lock_duration_ms: int = config(
        "share.record.lock.duration.ms",
        30_000,
        Integer(1, INT32_MAX, "int"),
        "Time for which a record is locked for the member that acquired it. Then it is delivered again.",
        "ms",
    )
    share_delivery_count_limit: int = config(
        "share.delivery.count.limit",
        5,
        Integer(1, 32_767, "int"),
        "Number of deliveries after which a record that is released, or whose lock ends, is archived.",
    )
    share_partition_max_record_locks: int = config(
        "share.partition.max.record.locks",
        2_000,
        Integer(1, 1_000_000, "int"),
        "Largest number of unfinished records of a partition: those that are locked, that wait for their next "
        "delivery, or for their dead letter. Delayed records do not count.",
        "records",
    )
    share_session_timeout_ms: int = config(
        "share.session.timeout.ms",
        45_000,
        Integer(1, INT32_MAX, "int"),
        "Time without a heartbeat that ends a membership. Locks end by share.record.lock.duration.ms.",
        "ms",
    )
    share_heartbeat_interval_ms: int = config(
        "share.heartbeat.interval.ms",
        5_000,
        Integer(1, INT32_MAX, "int"),
        "How often a member sends a heartbeat. With one it learns of new topics and partitions.",
        "ms",
    )
    share_auto_offset_reset: str = config(
        "share.auto.offset.reset",
        "latest",
        OffsetReset(),
        "Where the group begins in a partition that it reads for the first time. by_duration: at the first record of "
        "the last days, hours, minutes, seconds. A partition that is added to a topic later is read from the start.",
    )
    share_isolation_level: str = config(
        "share.isolation.level",
        "read_uncommitted",
        Choice(("read_uncommitted", "read_committed")),
        "Both give committed records only: records of open and aborted transactions have no offsets here.",
    )
    share_renew_acknowledge_enable: bool = config(
        "share.renew.acknowledge.enable",
        True,
        Boolean(),
        "Whether a member may start its lock again with an acknowledgement of type RENEW (KIP-1222).",
    )
    share_retry_backoff_ms: int = config(
        "share.retry.backoff.ms",
        0,
        Integer(0, INT32_MAX, "int"),
        "Not in Kafka. A released record waits this long until its second delivery, and twice as long each time. 0 = "
        "it is available at once.",
        "ms",
    )
    share_retry_backoff_max_ms: int = config(
        "share.retry.backoff.max.ms",
        60_000,
        Integer(0, INT32_MAX, "int"),
        "Not in Kafka. The longest wait by share.retry.backoff.ms.",
        "ms",
    )
    share_partition_max_delayed_records: int = config(
        "share.partition.max.delayed.records",
        1_000_000,
        Integer(0, INT64_MAX),
        "Not in Kafka. Largest number of records of a partition that wait for their delivery time, or for a retry. At "
        "the limit no later records of the partition are acquired until some are due.",
        "records",
    )
    errors_deadletterqueue_topic_name: str = config(
        "errors.deadletterqueue.topic.name",
        "",
        Text("the name of a topic, or nothing"),
        "Topic of the records that are rejected, or were delivered too often. Its name begins with the cluster setting "
        "errors.deadletterqueue.topic.name.prefix, and its config errors.deadletterqueue.group.enable is true. Empty = "
        "these records are only archived. While the topic cannot be used, they stay in the group.",
    )
    errors_deadletterqueue_copy_record_enable: bool = config(
        "errors.deadletterqueue.copy.record.enable",
        True,
        Boolean(),
        "Whether a dead letter has the key, the value and the headers of its record. Without them, the record is lost "
        "once its topic's retention removes it: so the default is true, other than Kafka's.",
        kafka="false",
    )
    share_assignment_interval_ms: int = config(
        "share.assignment.interval.ms", 0, Integer(0, INT32_MAX, "int"), "Without effect: nothing is assigned.", "ms"
    )
    share_assignor_offload_enable: bool = config(
        "share.assignor.offload.enable", True, Boolean(), "Without effect: nothing is assigned."
    )

    @classmethod
    def of(cls, overrides: Mapping[str, str], settings: ClusterSettings) -> "GroupConfig":
        """Return the configs in use: the group's, within the cluster's limits, else the cluster's defaults. Values of a
        newer spark-log, which this version does not know, are left out: otherwise one group would stop the work for
        all.
        """
        values = {}
        for dotted, field in _FIELDS_BY_NAME.items():
            name, value_type = field.name, field.metadata["type"]
            if hasattr(settings, f"group_{name}"):
                values[name] = getattr(settings, f"group_{name}")
            if dotted in overrides:
                with contextlib.suppress(ValueError):
                    values[name] = value_type.parse(overrides[dotted])
                    limits = _limits(name, settings)
                    if limits is not None:
                        values[name] = max(limits[0], min(values[name], limits[1]))
        return replace(cls(), **values)

    def as_text(self) -> dict[str, str]:
        """Return every config's dotted name and value as text."""
        return {name: field.metadata["type"].show(getattr(self, field.name)) for name, field in _FIELDS_BY_NAME.items()}


_FIELDS_BY_NAME = {field.metadata["definition"].name: field for field in fields(GroupConfig)}


def group_definitions() -> dict[str, ConfigDefinition]:
    """Return the definitions of all group configs by name."""
    return {name: field.metadata["definition"] for name, field in _FIELDS_BY_NAME.items()}


def validate_group_overrides(overrides: Mapping[str, str], settings: ClusterSettings) -> dict[str, str]:
    """Return the overrides with normal spellings. Raises InvalidConfigurationError, which names the config and its
    value, for an unknown config, an invalid value, or a value outside the cluster's limits.
    """
    check_group_config_names(overrides)
    valid = {}
    for name, text in overrides.items():
        value_type: ValueType = _FIELDS_BY_NAME[name].metadata["type"]
        try:
            value = value_type.parse(text)
        except ValueError as error:
            why = str(error) or f"expected {value_type.expected}"
            raise InvalidConfigurationError(f"Invalid value {text!r} for group config {name!r}: {why}") from None
        limits = _limits(_FIELDS_BY_NAME[name].name, settings)
        if limits is not None and not limits[0] <= value <= limits[1]:
            raise InvalidConfigurationError(
                f"Invalid value {text!r} for group config {name!r}: the cluster settings"
                f" {name.replace('share.', 'group.share.min.', 1)} and {name.replace('share.', 'group.share.max.', 1)}"
                f" allow {limits[0]} to {limits[1]}"
            )
        valid[name] = value_type.show(value)
    return valid


def check_group_config_names(names: Iterable[str]) -> None:
    """Raise InvalidConfigurationError, which names the config, if there is no such group config."""
    for name in names:
        if name not in _FIELDS_BY_NAME:
            near = difflib.get_close_matches(name, _FIELDS_BY_NAME, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(_FIELDS_BY_NAME)}"
            raise InvalidConfigurationError(f"Unknown group config {name!r}. {hint}")


def _limits(name: str, settings: ClusterSettings) -> tuple[int, int] | None:
    """Return the cluster's limits of a config, or None if it has none."""
    part = name.removeprefix("share_")
    low, high = (getattr(settings, f"group_share_{which}_{part}", None) for which in ("min", "max"))
    return None if low is None or high is None else (low, high)
