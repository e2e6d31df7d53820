"""The input of a write task, and its message to the driver. Both are pickled without the address of the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from spark_log.ids import HOME, StoreId, WriteId
from spark_log.log.append.encoding import Encoding, Target
from spark_log.log.append.rules import Batch
from spark_log.log.segments.slices import LogDirs


@dataclass(frozen=True)
class TopicPlan:
    """The facts of a topic that a writer needs: the encoding of records, and the log dirs of each partition's files."""

    topic_id: int
    name: str
    folder: str
    partition_count: int
    encoding: Encoding
    targets: Mapping[int, Target]


@dataclass(frozen=True)
class WritePlan:
    """The plan of one write. `topic` is the option; if it is None, each row names one of `topics`.

    `now_ms` is the store's time when the write was planned, by the host with `boot_id` at its `boot_ms`. A task
    computes its time from it (`TaskWriter`): LogAppendTime of every record, CreateTime of records without one.
    """

    write_id: WriteId
    topic: str | None
    topics: Mapping[str, TopicPlan]
    log_dirs: LogDirs
    now_ms: int
    inline_bytes_max: int
    fingerprint: bool
    boot_id: str
    boot_ms: int
    store_ids: tuple[StoreId, ...] = (HOME,)
    """The stores that have the write id: all that have one of `topics`."""
    unavailable: frozenset[str] = frozenset()
    """Topics whose store did not answer."""


@dataclass
class TaskOutput(WriterCommitMessage):
    """The batches that a task wrote, in order: files by name, and small ones with their bytes in `blobs`."""

    write_id: WriteId
    batches: list[Batch] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    record_count: int = 0
    fingerprint: int = 0
    query_id: str | None = None
    store_ids: tuple[StoreId, ...] = (HOME,)

    def __repr__(self) -> str:
        return f"TaskOutput({self.record_count} records in {len(self.batches)} batches)"
