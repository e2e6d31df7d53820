"""Defines the arguments that the command lines of the jobs pass to their queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from spark_log.spark.jobs.options.run_options import AvailableNow, Every, Shared
from spark_log.spark.jobs.options.stream_options import Input, StreamArguments

if TYPE_CHECKING:
    from spark_log.spark.mirror.mirror_topics import MirrorSettings
    from spark_log.spark.streams.joins import Bounds


Format = Literal["csv", "json", "parquet", "orc", "text", "delta", "rate"]


@dataclass(frozen=True)
class Columns:
    """SQL expressions over the input's columns, one for each record field. With None, the field has its default."""

    key: str | None
    """With None, keys are null and records are distributed round-robin."""
    value: str | None
    """With None, the value is all columns as one JSON object."""
    timestamp: str | None
    """A timestamp, or a text that casts to one. With None, records have the time of the write."""
    partition: str | None
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NewTopic:
    """The topic that --create-topic creates if it does not exist."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True)
class ProduceArguments:
    shared: Shared
    topic: str
    paths: tuple[str, ...]
    """Paths of the input. They are empty for --format rate."""
    format: Format
    schema: str | None
    """DDL of the input. With None, the schema is inferred from the files, or is that of the format."""
    options: Mapping[str, str]
    """Options for Spark's reader."""
    columns: Columns
    new_topic: NewTopic | None


Mode = Literal["append", "overwrite", "errorifexists", "ignore"]


@dataclass(frozen=True)
class Console:
    limit: int
    """Number of rows to show: of the whole result, or of each batch of a stream."""


@dataclass(frozen=True)
class Files:
    """A folder of Parquet files or a Delta table."""

    format: Literal["parquet", "delta"]
    path: str
    mode: Mode


@dataclass(frozen=True)
class OtherTopic:
    """Copies key, value, headers and timestamp of records to another topic, with `keep_partitions` also partitions."""

    topic: str
    cluster: str
    keep_partitions: bool


Sink = Console | Files | OtherTopic


@dataclass(frozen=True)
class ConsumeArguments:
    shared: Shared
    options: Mapping[str, str]
    """Options of format("spark_log"), without the cluster."""
    value_schema: str | None
    """DDL of the columns into which the values, JSON objects, are parsed. With None, key and value stay bytes."""
    sink: Sink


Kind = Literal["inner", "left", "right", "full"]


OneSided = Literal["inner", "left"]


@dataclass(frozen=True)
class OtherStream:
    """The right side of a stream-stream join."""

    input: Input
    on: Mapping[str, str]
    """Left column -> right column that must be equal."""
    within: "Bounds | None"
    how: Kind


@dataclass(frozen=True)
class WithTable:
    """A compacted topic of the same cluster to join with."""

    topic: str
    value_schema: str
    on: str
    how: OneSided


@dataclass(frozen=True)
class WithStatic:
    """Files or a Delta table to join with, read once."""

    path: str
    format: str
    schema: str | None
    on: Mapping[str, str]
    """Left column -> column of the static side that must be equal."""
    how: OneSided


@dataclass(frozen=True)
class JoinArguments:
    """The arguments of a join with at least one of `right`, `static` and `table`, which are joined in this order."""

    stream: StreamArguments
    left: Input
    right: OtherStream | None
    static: WithStatic | None
    table: WithTable | None


@dataclass(frozen=True)
class MirrorArguments:
    cluster: str = field(repr=False)
    to_cluster: str = field(repr=False)
    """Address of the target. Both addresses may hold passwords."""
    settings: "MirrorSettings"
    run: AvailableNow | Every
    groups: bool
    json: bool
