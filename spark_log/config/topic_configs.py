"""Defines the topic configs, each documented where it is defined.

Names, units and meanings of topic configs are Kafka's (https://kafka.apache.org/documentation/#topicconfigs). A config
whose default differs says so and gives the reason. All configs are dynamic: a new value applies from the next append,
read plan or maintenance run. Only the overrides are stored, as text; only `TopicConfig` parses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_log.config.definition import ConfigDefinition, config
from spark_log.config.topic_config_texts import OTHER_NAMES, canonical, hint, parse
from spark_log.config.typed_configs import (
    SOURCES,
    PartConfigs,
    part_bad_records,
    part_columns,
    part_format,
    part_framing,
    part_schema,
    value_envelope,
    value_envelope_sequence,
)
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
    WordSet,
)
from spark_log.errors import InvalidConfigurationError


@dataclass(frozen=True)
class TopicConfig:
    """The configs of one topic, typed. Field names are the config names with `_` for `.`."""

    retention_ms: int = config(
        "retention.ms",
        7 * DAY_MS,
        Integer(-1),
        "How long records are kept under cleanup.policy=delete, by the largest timestamp of a segment; -1 = for ever.",
        "ms",
    )
    retention_bytes: int = config(
        "retention.bytes",
        -1,
        Integer(-1),
        "How large a partition may grow before its oldest segments are deleted; -1 = no limit. Stored (compressed) "
        "bytes.",
        "bytes",
    )
    segment_bytes: int = config(
        "segment.bytes",
        GIB,
        Integer(14, INT32_MAX, "int"),
        "Size that merged segment files aim at; a file is never split for having grown past it.",
        "bytes",
    )
    segment_ms: int = config(
        "segment.ms",
        7 * DAY_MS,
        Integer(1),
        "Age at which the inline tail is sealed into a Parquet segment although it is small, so that retention and "
        "compaction can reach it.",
        "ms",
    )
    max_message_bytes: int = config(
        "max.message.bytes",
        1_048_588,
        Integer(0, INT32_MAX, "int"),
        "Largest record accepted: key, value and headers, uncompressed.",
        "bytes",
    )
    message_timestamp_type: str = config(
        "message.timestamp.type",
        "CreateTime",
        Choice(("CreateTime", "LogAppendTime")),
        "Whether records carry the producer's timestamp or the time of the append by the store's clock. A fact of the "
        "segment: a change leaves older segments as they are.",
    )
    message_timestamp_before_max_ms: int = config(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        Integer(0),
        "How far a CreateTime may lie before the store's clock; beyond it the record is refused.",
        "ms",
    )
    message_timestamp_after_max_ms: int = config(
        "message.timestamp.after.max.ms",
        3_600_000,
        Integer(0),
        "How far a CreateTime may lie after the store's clock; beyond it the record is refused. One hour since Kafka "
        "4.0 (KIP-1030): one record from the year 9999 would otherwise hold up retention by time.",
        "ms",
    )
    compression_type: str = config(
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
    compression_zstd_level: int = config(
        "compression.zstd.level",
        1,
        Integer(-131_072, 22, "int"),
        "Level of zstd. 1 because Kafka's default of 3 writes at 0.4 of the speed for a few percent of the size; merge "
        "and compaction write the bytes again anyway: in topics with typed columns at level 8, unless this is set.",
        "level",
        "3",
    )
    compression_gzip_level: int = config(
        "compression.gzip.level",
        6,
        Integer(1, 9, "int"),
        "Level of gzip. 6 is what Kafka's -1 (the library's default) means in zlib; -1 is not accepted, since Arrow "
        "reads it as 9.",
        "level",
        "-1",
    )
    cleanup_policy: frozenset[str] = config(
        "cleanup.policy",
        frozenset({"delete"}),
        WordSet(("compact", "delete")),
        "delete: drop old segments by retention. compact: keep the last value of every key; records need keys.",
    )
    delete_retention_ms: int = config(
        "delete.retention.ms",
        DAY_MS,
        Integer(0),
        "How long a tombstone stays in a compacted topic, so that a reader from the start still learns of the "
        "deletion.",
        "ms",
    )
    min_compaction_lag_ms: int = config(
        "min.compaction.lag.ms",
        0,
        Integer(0),
        "Age below which a record is not compacted away. At most max.compaction.lag.ms.",
        "ms",
    )
    max_compaction_lag_ms: int = config(
        "max.compaction.lag.ms",
        INT64_MAX,
        Integer(1),
        "Age of a record at which its partition is compacted although the dirty ratio is low.",
        "ms",
    )
    min_cleanable_dirty_ratio: float = config(
        "min.cleanable.dirty.ratio",
        0.5,
        Decimal(0, 1),
        "Share of a compacted partition (by bytes) that must be new since the last compaction before it runs again.",
    )
    min_insync_replicas: int = config(
        "min.insync.replicas",
        1,
        Integer(1, INT32_MAX, "int"),
        "An append with acks=all is refused while the ISR is smaller than this.",
    )
    unclean_leader_election_enable: bool = config(
        "unclean.leader.election.enable",
        False,
        Boolean(),
        "Whether a replica outside the ISR may become leader when no member of the ISR is alive: available again, at "
        "the price of records, which are counted and reported.",
    )
    flush_messages: int = config(
        "flush.messages",
        1,
        Integer(1),
        "Force data to disk at the latest after so many messages. 1: every append is durable when it is acknowledged; "
        "a larger value acknowledges first and can lose what a power cut finds unflushed.",
        "messages",
        str(INT64_MAX),
    )
    flush_ms: int = config(
        "flush.ms",
        INT64_MAX,
        Integer(0),
        "Force data to disk at the latest after so long. Matters only where flush.messages is above 1.",
        "ms",
    )
    inline_max_bytes: int = config(
        "inline.max.bytes",
        64 * KIB,
        Integer(0, 16 * MIB, "int"),
        "Not in Kafka. An append below it goes into the metadata store, in the transaction that assigns its "
        "offsets: one durable commit and no small file. 0 = never. At most 16 MiB, since the store is no place for "
        "large values.",
        "bytes",
    )
    inline_tail_bytes: int = config(
        "inline.tail.bytes",
        MIB,
        Integer(1, 256 * MIB, "int"),
        "Not in Kafka. The inline tail of a partition is sealed into a Parquet segment when it reaches this size. "
        "Larger means fewer files, and more bytes that travel inside Spark's plans.",
        "bytes",
    )
    errors_deadletterqueue_group_enable: bool = config(
        "errors.deadletterqueue.group.enable",
        False,
        Boolean(),
        "Whether share groups may use the topic for their dead letters (their config "
        "errors.deadletterqueue.topic.name). Without it, a mistyped name would write into another topic.",
    )
    delta_max_lag_ms: int = config(
        "delta.max.lag.ms",
        5_000,
        Integer(-1),
        "Not in Kafka. How long a record may be in the log before the topic's Delta table lists it: the inline tail is "
        "sealed at this age. A coordinator does so; without one the clients that append do, and when they close. "
        "Values below 1000 count as 1000 in the bound of the lag that metrics and the doctor use. -1 = no limit: the "
        "tail is sealed by inline.tail.bytes and segment.ms alone.",
        "ms",
    )
    table_formats: str = config(
        "table.formats",
        "delta",
        Choice(("delta", "delta,iceberg")),
        "Not in Kafka. The formats of the topic's tables, over the same files: a Delta table, and with delta,iceberg "
        "also an Iceberg table (format version 2), which needs the extra `iceberg` and log dirs in folders or S3.",
    )
    table_current: str = config(
        "table.current",
        "none",
        Choice(("none", "delta")),
        "Not in Kafka. delta: the topic has another Delta table, in folder _current, which shows the last record of "
        "each key of each partition, unless it is a tombstone. It needs the extra `current`, log dirs in folders or S3,"
        " and cleanup.policy=compact or unlimited retention. The topic gets no further partitions.",
    )
    table_current_order: str = config(
        "table.current.order",
        "offset",
        Choice(("offset", "sequence")),
        "Not in Kafka. Which record of a key table.current shows, and compaction keeps. offset: the last one. "
        "sequence: the event with the largest number at value.envelope.sequence, since Debezium may repeat older ones; "
        "a tombstone changes nothing then. It needs table.current and value.envelope.",
    )
    iceberg_max_lag_ms: int = config(
        "iceberg.max.lag.ms",
        60_000,
        Integer(1_000),
        "Not in Kafka. How long a segment file may exist before the topic's Iceberg table lists it. Each of its "
        "snapshots makes its metadata larger, so it has fewer than the Delta table has versions.",
        "ms",
    )
    iceberg_snapshot_retention_ms: int = config(
        "iceberg.snapshot.retention.ms",
        6 * 60 * 60 * 1000,
        Integer(0),
        "Not in Kafka. How long the snapshots of the topic's Iceberg table can be read. The last one stays. Segment "
        "files that it lists may be deleted before (file.delete.delay.ms).",
        "ms",
    )
    delta_log_retention_ms: int = config(
        "delta.log.retention.ms",
        30 * DAY_MS,
        Integer(DAY_MS),
        "Not in Kafka. How long the versions of the topic's Delta table can be read, by time travel and streams: older "
        "files of the Delta log are deleted. Segment files that a version lists may be deleted before "
        "(file.delete.delay.ms).",
        "ms",
    )
    delta_log_commits_max: int = config(
        "delta.log.commits.max",
        30_000,
        Integer(1, 2**31 - 1, "int"),
        "Not in Kafka. The number of versions of the topic's Delta table that can be read; older ones are removed "
        "before delta.log.retention.ms has passed. Those of the last day are kept in any case.",
    )
    file_delete_delay_ms: int = config(
        "file.delete.delay.ms",
        7 * DAY_MS,
        Integer(0),
        "How long a file stays on disk after retention, merge or compaction has taken it out of the log: Spark jobs "
        "and Delta readers that started before may still be on it. retired.file.retention.ms is accepted as well.",
        "ms",
        "60000",
    )
    file_delete_delay_fresh_ms: int = config(
        "file.delete.delay.fresh.ms",
        DAY_MS,
        Integer(0),
        "Not in Kafka. file.delete.delay.ms of a file that was replaced within 10 minutes after its records were "
        "appended: small files are merged soon, and a topic that is always active writes tens of thousands a day. At "
        "most file.delete.delay.ms counts.",
        "ms",
    )

    key_format: str = part_format("key")
    key_schema: str = part_schema("key")
    key_framing: str = part_framing("key")
    key_columns: str = part_columns("key")
    key_bad_records: str = part_bad_records("key")
    value_format: str = part_format("value")
    value_schema: str = part_schema("value")
    value_framing: str = part_framing("value")
    value_columns: str = part_columns("value")
    value_bad_records: str = part_bad_records("value")
    value_envelope: str = value_envelope()
    value_envelope_sequence: str = value_envelope_sequence()
    schema_registry_url: str = config(
        "schema.registry.url",
        "",
        Text("addresses that begin with http:// or https://, separated by commas"),
        "The schema registry of registry:SUBJECT in key.schema and value.schema, by its REST API. Empty: the cluster's "
        "own registry.",
    )

    @classmethod
    def from_overrides(cls, overrides: Mapping[str, str]) -> "TopicConfig":
        """Return the defaults, overridden by `overrides` (dotted name to text).

        Raise InvalidConfigurationError that names the config and, if it exists, the value and the expected values.
        """
        named = canonical(overrides)
        parsed = cls(**{name.replace(".", "_"): _parse(name, text) for name, text in named.items()})
        if parsed.min_compaction_lag_ms > parsed.max_compaction_lag_ms:
            raise InvalidConfigurationError(
                f"min.compaction.lag.ms ({parsed.min_compaction_lag_ms}) must not be greater than "
                f"max.compaction.lag.ms ({parsed.max_compaction_lag_ms})"
            )
        return parsed

    @classmethod
    def from_stored(cls, overrides: Mapping[str, str]) -> "TopicConfig":
        """Return the configs of a topic as they are stored. Names and values of a newer spark-log, which this version
        does not know, are left out: otherwise one topic would stop the work for all.
        """
        return cls.from_overrides({name: text for name, text in overrides.items() if _is_known(name, text)})

    @property
    def compacts(self) -> bool:
        """Whether the topic is compacted, so that only the last value of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention.ms and retention.bytes apply."""
        return "delete" in self.cleanup_policy

    @property
    def parts(self) -> tuple[PartConfigs, ...]:
        """The configs of the keys and of the values."""
        return tuple(map(self.part, SOURCES))

    def part(self, source: str) -> PartConfigs:
        """Return the configs of the keys or of the values. `source` is key or value."""
        names = (name for name in PartConfigs._fields[1:] if hasattr(self, f"{source}_{name}"))
        return PartConfigs(source, **{name: getattr(self, f"{source}_{name}") for name in names})

    def as_text(self) -> dict[str, str]:
        """Return every config's dotted name and value as text, from which `from_overrides` makes an equal config."""
        return {name: entry.metadata["type"].show(getattr(self, entry.name)) for name, entry in _FIELDS_BY_NAME.items()}


_FIELDS_BY_NAME = {entry.metadata["definition"].name: entry for entry in fields(TopicConfig)}


def _is_known(name: str, text: str) -> bool:
    try:
        _parse(OTHER_NAMES.get(name, name), text)
    except InvalidConfigurationError:
        return False
    return True


def definitions() -> list[ConfigDefinition]:
    """Return the definitions of all topic configs, in the order of the reference page."""
    return [entry.metadata["definition"] for entry in _FIELDS_BY_NAME.values()]


def _parse(name: str, text: object) -> Any:
    if name not in _FIELDS_BY_NAME:
        raise InvalidConfigurationError(f"Unknown topic config {name!r}{hint(name, _FIELDS_BY_NAME)}")
    return parse(name, text, _FIELDS_BY_NAME[name].metadata["type"])
