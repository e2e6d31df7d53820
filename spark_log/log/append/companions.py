"""Defines interfaces that a `Log` calls and higher layers implement: replication, listeners, the limit of tails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_log.cluster.topics import Topic
from spark_log.ids import TopicPartition
from spark_log.log.append.append_transaction import AppendRequest, AppendResult
from spark_log.log.append.rules import Appended, Batch, Rejected
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.replication_rules import PartitionState


class Replication(Protocol):
    """Appends to the leader and the ISR."""

    def append(self, request: AppendRequest, topics: Mapping[int, Topic], timeout_ms: int) -> AppendResult:
        """Run the append transaction, and repeat it for batches that were refused because replicas lack records."""

    def detect_failures(self) -> None:
        """Inspect log dirs and elect leaders after a failure, or wait for the process that does so."""


@dataclass(frozen=True)
class Append:
    """A committed append, with the outcome of each batch and the partitions afterwards (by topic id and number)."""

    batches: Sequence[Batch]
    outcomes: Sequence[Appended | Rejected]
    topics: Mapping[int, Topic]
    partitions: Mapping[Key, PartitionState]

    @property
    def topics_with_files(self) -> set[int]:
        """Return the ids of the topics that got a segment file."""
        return {
            batch.topic_id
            for batch, outcome in zip(self.batches, self.outcomes, strict=True)
            if isinstance(outcome, Appended) and not outcome.duplicate and not batch.inline
        }


class AppendListener(Protocol):
    def appended(self, append: Append) -> None:
        """Handle an append. The appending thread calls this after the commit; an error is only logged."""


class TailLimit(Protocol):
    """Keeps the inline tails of a plan short, because a plan contains their bytes."""

    def too_long(self, sizes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the tails to seal before a read is planned. `sizes` is in bytes."""

    def seal(self, topic: Topic, partition: int) -> bool:
        """Seal the tail. Returns whether it has become shorter."""
