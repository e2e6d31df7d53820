"""Topic configs, each documented where it is defined.

Names, units and meaning of topic configs are Kafka's (https://kafka.apache.org/documentation/#topicconfigs); a config
whose default differs says so and gives the reason. All are dynamic: an altered value applies from the next append, plan
or maintenance run. Only the overrides are stored, as text; `TopicConfig.from_overrides` is the one place where text
becomes types.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from spark_log.config.values import (
    DAY_MS,
    GIB,
    INT32_MAX,
    INT64_MAX,
    KIB,
    MIB,
    Boolean,
    Choice,
    Decimal,
    Integer,
    Text,
    ValueType,
    WordSet,
)
from spark_log.errors import InvalidConfigurationError

V = TypeVar("V")


@dataclass(frozen=True)
class ConfigDefinition:
    """One topic config, for reference pages and `describe_configs`. Texts only."""

    name: str
    """Kafka's dotted name, or that of a config that only spark-log has."""
    kind: str
    """Kafka's name of the type: long, int, double, boolean, string, list."""
    default: str
    """The default as a user would type it."""
    valid: str
    """The accepted values, in words."""
    unit: str
    """ms, bytes, messages, level, or empty."""
    doc: str
    """Its effect, and the reason if the default differs from Kafka's."""
    kafka_default: str | None
    """Kafka's default if it differs; None if they are equal or Kafka has no such config."""


def _config(name: str, default: Any, value_type: ValueType, doc: str, unit: str = "", kafka: str | None = None) -> Any:
    definition = ConfigDefinition(
        name, value_type.kind, value_type.show(default), value_type.expected, unit, doc, kafka
    )
    return field(default=default, metadata={"definition": definition, "type": value_type})


@dataclass(frozen=True)
class TopicConfig:
    """The configs of one topic, typed. Field names are the config names with `_` for `.`."""

    retention_ms: int = _config(
        "retention.ms",
        7 * DAY_MS,
        Integer(-1),
        "How long records are kept under cleanup.policy=delete, by the largest timestamp of a segment; -1 = for ever.",
        "ms",
    )
    retention_bytes: int = _config(
        "retention.bytes",
        -1,
        Integer(-1),
        "How large a partition may grow before its oldest segments are deleted; -1 = no limit. Stored (compressed) "
        "bytes.",
        "bytes",
    )
    segment_bytes: int = _config(
        "segment.bytes",
        GIB,
        Integer(14, INT32_MAX, "int"),
        "Size that merged segment files aim at; a file is never split for having grown past it.",
        "bytes",
    )
    segment_ms: int = _config(
        "segment.ms",
        7 * DAY_MS,
        Integer(1),
        "Age at which the inline tail is sealed into a Parquet segment although it is small, so that retention and "
        "compaction can reach it.",
        "ms",
    )
    max_message_bytes: int = _config(
        "max.message.bytes",
        1_048_588,
        Integer(0, INT32_MAX, "int"),
        "Largest record accepted: key, value and headers, uncompressed.",
        "bytes",
    )
    message_timestamp_type: str = _config(
        "message.timestamp.type",
        "CreateTime",
        Choice(("CreateTime", "LogAppendTime")),
        "Whether records carry the producer's timestamp or the time of the append by the store's clock. A fact of the "
        "segment: a change leaves older segments as they are.",
    )
    message_timestamp_before_max_ms: int = _config(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        Integer(0),
        "How far a CreateTime may lie before the store's clock; beyond it the record is refused.",
        "ms",
    )
    message_timestamp_after_max_ms: int = _config(
        "message.timestamp.after.max.ms",
        3_600_000,
        Integer(0),
        "How far a CreateTime may lie after the store's clock; beyond it the record is refused. One hour since Kafka "
        "4.0 (KIP-1030): one record from the year 9999 would otherwise hold up retention by time.",
        "ms",
    )
    compression_type: str = _config(
        "compression.type",
        "zstd",
        Choice(
            ("zstd", "snappy", "lz4", "gzip", "none"),
            aliases=(("uncompressed", "none"),),
            refused=(
                ("producer", "records are encoded into segments here, so there is no producer's codec to retain"),
            ),
        ),
        "Codec of segment files and inline blobs. zstd: the smallest of the fast ones, and every Parquet reader has "
        "it.",
        kafka="producer",
    )
    compression_zstd_level: int = _config(
        "compression.zstd.level",
        1,
        Integer(-131_072, 22, "int"),
        "Level of zstd. 1 because Kafka's default of 3 writes at 0.4 of the speed for a few percent of the size; merge "
        "and compaction write the bytes again anyway: in topics with typed columns at level 8, unless this is set.",
        "level",
        "3",
    )
    compression_gzip_level: int = _config(
        "compression.gzip.level",
        6,
        Integer(1, 9, "int"),
        "Level of gzip. 6 is what Kafka's -1 (the library's default) means in zlib; -1 is not accepted, since Arrow "
        "reads it as 9.",
        "level",
        "-1",
    )
    cleanup_policy: frozenset[str] = _config(
        "cleanup.policy",
        frozenset({"delete"}),
        WordSet(("compact", "delete")),
        "delete: drop old segments by retention. compact: keep the last value of every key; records need keys.",
    )
    delete_retention_ms: int = _config(
        "delete.retention.ms",
        DAY_MS,
        Integer(0),
        "How long a tombstone stays in a compacted topic, so that a reader from the start still learns of the "
        "deletion.",
        "ms",
    )
    min_compaction_lag_ms: int = _config(
        "min.compaction.lag.ms",
        0,
        Integer(0),
        "Age below which a record is not compacted away. At most max.compaction.lag.ms.",
        "ms",
    )
    max_compaction_lag_ms: int = _config(
        "max.compaction.lag.ms",
        INT64_MAX,
        Integer(1),
        "Age of a record at which its partition is compacted although the dirty ratio is low.",
        "ms",
    )
    min_cleanable_dirty_ratio: float = _config(
        "min.cleanable.dirty.ratio",
        0.5,
        Decimal(0, 1),
        "Share of a compacted partition (by bytes) that must be new since the last compaction before it runs again.",
    )
    min_insync_replicas: int = _config(
        "min.insync.replicas",
        1,
        Integer(1, INT32_MAX, "int"),
        "An append with acks=all is refused while the ISR is smaller than this.",
    )
    unclean_leader_election_enable: bool = _config(
        "unclean.leader.election.enable",
        False,
        Boolean(),
        "Whether a replica outside the ISR may become leader when no member of the ISR is alive: available again, at "
        "the price of records, which are counted and reported.",
    )
    flush_messages: int = _config(
        "flush.messages",
        1,
        Integer(1),
        "Force data to disk at the latest after so many messages. 1: every append is durable when it is acknowledged; "
        "a larger value acknowledges first and can lose what a power cut finds unflushed.",
        "messages",
        str(INT64_MAX),
    )
    flush_ms: int = _config(
        "flush.ms",
        INT64_MAX,
        Integer(0),
        "Force data to disk at the latest after so long. Matters only where flush.messages is above 1.",
        "ms",
    )
    inline_max_bytes: int = _config(
        "inline.max.bytes",
        64 * KIB,
        Integer(0, 16 * MIB, "int"),
        "Not in Kafka. An append below it goes into the metadata store, in the transaction that assigns its "
        "offsets: one durable commit and no small file. 0 = never. At most 16 MiB, since the store is no place for "
        "large values.",
        "bytes",
    )
    inline_tail_bytes: int = _config(
        "inline.tail.bytes",
        MIB,
        Integer(1, 256 * MIB, "int"),
        "Not in Kafka. The inline tail of a partition is sealed into a Parquet segment when it reaches this size. "
        "Larger means fewer files, and more bytes that travel inside Spark's plans.",
        "bytes",
    )
    delta_max_lag_ms: int = _config(
        "delta.max.lag.ms",
        60_000,
        Integer(-1),
        "Not in Kafka. How long a record may be in the log before the topic's Delta table lists it: the inline tail is "
        "sealed at this age. A coordinator does so; without one the clients that append do, and when they close. -1 = "
        "no limit: the tail is sealed by inline.tail.bytes and segment.ms alone.",
        "ms",
    )
    file_delete_delay_ms: int = _config(
        "file.delete.delay.ms",
        7 * DAY_MS,
        Integer(0),
        "How long a file stays on disk after retention, merge or compaction has taken it out of the log: Spark jobs "
        "and Delta readers that started before may still be on it. retired.file.retention.ms is accepted as well.",
        "ms",
        "60000",
    )

    value_format: str = _config(
        "value.format",
        "bytes",
        Choice(("bytes", "json", "avro", "protobuf")),
        "Not in Kafka. How values are encoded. With json, avro or protobuf, segment files and the Delta table also have"
        " the columns record and record_error: the fields of value.schema, decoded when a file is written. The bytes in"
        " value stay as they are.",
    )
    value_schema: str = _config(
        "value.schema",
        "",
        Text("a schema in the language of value.format"),
        "Not in Kafka. The fields of the values: Spark DDL (`item STRING, price DOUBLE`) or a JSON Schema for json, a"
        " schema in JSON for avro, `@FILE#MESSAGE` of a descriptor set for protobuf (the command line stores the"
        " message's name and the descriptor). A change may add fields and leave fields out; the column of a field that"
        " is left out stays. Another type for a field is refused (`spark-log schema set --reset` gives it another"
        " column). `registry:SUBJECT` takes the latest version of a subject of the"
        " schema registry, and follows it; `registry:SUBJECT@N` takes version N. For Protobuf, `#my.package.Message`"
        " after it chooses another message than the first one of the file.",
    )
    schema_registry_url: str = _config(
        "schema.registry.url",
        "",
        Text("addresses that begin with http:// or https://, separated by commas"),
        "The schema registry of value.schema=registry:SUBJECT, by its REST API. Empty: the cluster's own registry.",
    )
    value_framing: str = _config(
        "value.framing",
        "none",
        Choice(("none", "confluent")),
        "Not in Kafka. confluent: a zero byte and the id of the schema (four bytes) precede each value, as Confluent's"
        " serializers write it. Avro and Protobuf values then need value.schema=registry:SUBJECT.",
    )
    value_columns: str = _config(
        "value.columns",
        "all",
        Text("all, or names of fields separated by commas"),
        "Not in Kafka. The fields of value.schema that become columns: all, or some (`item,lines.price`).",
    )
    value_bad_records: str = _config(
        "value.bad.records",
        "keep",
        Choice(("keep", "reject")),
        "Not in Kafka. A value that cannot be decoded: keep appends it, with a null in record and the reason in"
        " record_error; reject refuses the append with InvalidRecordError.",
    )

    @classmethod
    def from_overrides(cls, overrides: Mapping[str, str]) -> "TopicConfig":
        """The defaults, overridden by `overrides` (dotted name -> text).

        Raises InvalidConfigurationError that names the config, the value and the expected values.
        """
        named = canonical(overrides)
        config = cls(**{name.replace(".", "_"): _parse(name, text) for name, text in named.items()})
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigurationError(
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) must not be greater than "
                f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
            )
        return config

    @property
    def compacts(self) -> bool:
        """Whether only the last value of a key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention.ms and retention.bytes apply."""
        return "delete" in self.cleanup_policy

    def as_text(self) -> dict[str, str]:
        """Every config's dotted name and value as text; `from_overrides` of it gives an equal config."""
        return {name: entry.metadata["type"].show(getattr(self, entry.name)) for name, entry in _FIELDS_BY_NAME.items()}


_FIELDS_BY_NAME = {entry.metadata["definition"].name: entry for entry in fields(TopicConfig)}

_OTHER_NAMES = {"retired.file.retention.ms": "file.delete.delay.ms"}
"""Other accepted names of configs, which may also be stored."""


def canonical(values: Mapping[str, V]) -> dict[str, V]:
    """`values` under the names in `definitions`. InvalidConfigurationError if a config is given under two names."""
    named: dict[str, V] = {}
    for name, value in values.items():
        its_name = _OTHER_NAMES.get(name, name)
        if its_name in named:
            raise InvalidConfigurationError(f"config {its_name!r} is given twice, as {name!r} too")
        named[its_name] = value
    return named


_WITHOUT_MEANING = {
    "compression.lz4.level": "lz4 is used at its fastest level",
    "follower.replication.throttled.replicas": "a reassignment takes its throttle as an argument",
    "index.interval.bytes": "the metadata store is the index",
    "leader.replication.throttled.replicas": "a reassignment takes its throttle as an argument",
    "local.retention.ms": "log dirs may be object stores; there is one tier",
    "local.retention.bytes": "log dirs may be object stores; there is one tier",
    "message.downconversion.enable": "there is one message format",
    "message.format.version": "there is one message format",
    "message.timestamp.difference.max.ms": "see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    "preallocate": "segment files are written whole",
    "remote.storage.enable": "log dirs may be object stores; there is one tier",
    "segment.index.bytes": "the metadata store is the index",
    "segment.jitter.ms": "sealing is spread by the coordinator",
}
"""Kafka's configs that cannot apply here, with the reasons: they are refused by name, not ignored."""


def definitions() -> list[ConfigDefinition]:
    """All topic configs, in the order of the reference page."""
    return [entry.metadata["definition"] for entry in _FIELDS_BY_NAME.values()]


def validate_overrides(overrides: Mapping[str, str]) -> None:
    """Raises InvalidConfigurationError as `TopicConfig.from_overrides` does; for callers that store the text."""
    TopicConfig.from_overrides(overrides)


def _parse(name: str, text: object) -> Any:
    if name not in _FIELDS_BY_NAME:
        raise InvalidConfigurationError(f"Unknown topic config {name!r}{_hint(name)}")
    value_type: ValueType = _FIELDS_BY_NAME[name].metadata["type"]
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


def _hint(name: object) -> str:
    if not isinstance(name, str):
        return ": expected text"
    if name in _WITHOUT_MEANING:
        return f": a config of Kafka that has no meaning here ({_WITHOUT_MEANING[name]})"
    near = difflib.get_close_matches(name.lower().replace("_", "."), _FIELDS_BY_NAME, n=3, cutoff=0.6)
    return f". Did you mean {' or '.join(near)}?" if near else f". Known are {', '.join(_FIELDS_BY_NAME)}"
