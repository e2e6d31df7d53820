"""Defines the input of a write task, and its message to the driver, both without the address of the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from spark_log.ids import HOME, StoreId, WriteId
from spark_log.log.append.encoding import Encoding, Target
from spark_log.log.append.rules import Batch
from spark_log.log.segments.slices import LogDirs


@dataclass(frozen=True)
class TopicPlan:
    """The data of a topic that a writer needs: the encoding of records, and the log dirs of each partition's files."""

    topic_id: int
    name: str
    folder: str
    partition_count: int
    encoding: Encoding
    targets: Mapping[int, Target]


@dataclass(frozen=True)
class WritePlan:
    """The plan of one write. `topic` is the option `topic`; if it is None, each row names one of `topics`.

    `now_ms` is the store's time when the write was planned. `boot_id` identifies the boot of the planning host, and
    `boot_ms` is the time since that boot. From these a task computes its time (`TaskWriter`): LogAppendTime of all
    records, and CreateTime of records without one.
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
    """The stores where the write id is registered: all stores of `topics`, and the home store if rows name topics."""
    unavailable: frozenset[str] = frozenset()
    """Topics whose store did not answer."""


@dataclass
class TaskOutput(WriterCommitMessage):
    """The batches that a task wrote, in order. Most name a file; the bytes of small ones are in `blobs`."""

    write_id: WriteId
    batches: list[Batch] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    record_count: int = 0
    fingerprint: int = 0
    query_id: str | None = None
    store_ids: tuple[StoreId, ...] = (HOME,)

    def __repr__(self) -> str:
        return f"TaskOutput({self.record_count} records in {len(self.batches)} batches)"
