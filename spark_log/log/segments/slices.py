"""Defines slices of segments, with all data that a reader needs and without the address of the metadata store."""

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_log.ids import LogDirId, TopicPartition

if TYPE_CHECKING:
    from spark_log.cluster.log_dir import LogDirInfo  # not at run time: it imports pyarrow
    from spark_log.log.columns.topic_columns import TopicColumns


class Slice(NamedTuple):
    """The records with start <= offset < end of one segment. The segment is a file in each of `log_dir_ids`, or inline
    in `data`. record_count, size (in bytes) and checksum are those of the whole segment.
    """

    topic: str
    folder: str
    partition: int
    base_offset: int
    start: int
    end: int
    record_count: int
    size: int
    timestamp_type: int
    name: str
    checksum: str
    leader_epoch: int
    """Leader epoch of the append, or of the newest append if segments were merged."""
    log_dir_ids: tuple[LogDirId, ...]
    data: bytes | None
    """Bytes of an inline segment, empty until `plan.with_inline_data` reads them; None for a file."""
    columns: "TopicColumns | None" = None
    """The typed columns of the topic, None without typed columns."""
    columns_version: int | None = None
    """The version of the typed columns in the file, None without typed columns."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Positions(NamedTuple):
    """The readable offsets of a partition: log_start_offset <= offset < high_watermark."""

    log_start_offset: int
    high_watermark: int


class TimestampBounds(NamedTuple):
    """min_ms <= timestamp < max_ms; None is no bound. Segments and row groups without such a record are skipped."""

    min_ms: int | None = None
    max_ms: int | None = None


class Condition(Enum):
    """The condition of a filter on a value. All but IS_NULL reject null."""

    IN = "in"
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="
    STARTS_WITH = "starts with"
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"


class FieldFilter(NamedTuple):
    """A filter on a leaf: its path, which begins with the typed column, and the condition with its values. IN has any
    number of values, a comparison one, IS_NULL and IS_NOT_NULL none.
    """

    path: tuple[str, ...]
    condition: Condition
    values: tuple[Any, ...] = ()


LogDirs = dict[LogDirId, "LogDirInfo"]
"""The log dirs that a plan's slices need, by id."""
