"""Slices of segments, with everything that a reader needs and without the address of the metadata store."""

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_log.ids import LogDirId, TopicPartition

if TYPE_CHECKING:
    from spark_log.cluster.log_dir import LogDirInfo  # not at run time: it imports pyarrow
    from spark_log.log.columns.topic_columns import TopicColumns


class Slice(NamedTuple):
    """Records with start <= offset < end of one segment: a file in any of `log_dir_ids`, or the bytes in `data`."""

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
    """Of the newest of its appends, where segments were merged."""
    log_dir_ids: tuple[LogDirId, ...]
    data: bytes | None
    columns: "TopicColumns | None" = None
    """The typed columns of the topic."""
    columns_version: int | None = None
    """The version of the typed columns in the file; None: it has none."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Positions(NamedTuple):
    """The readable offsets of a partition: log_start_offset <= offset < high_watermark."""

    log_start_offset: int
    high_watermark: int


class TimestampBounds(NamedTuple):
    """min_ms <= timestamp < max_ms; None: unbounded. Segments and row groups without such a record are passed over."""

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
    """A filter on a leaf: its path from the typed column on, the condition, and its values: those of IN,
    one for a comparison, none for IS_NULL and IS_NOT_NULL.
    """

    path: tuple[str, ...]
    condition: Condition
    values: tuple[Any, ...] = ()


LogDirs = dict[LogDirId, "LogDirInfo"]
"""Log dirs by id, as far as a plan's slices need them."""
