"""Writes the segment files of batches that are too large for blobs, before the append that names the files."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.log_dir_failures import report_failure
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    NotLeaderForPartitionError,
    SparkLogError,
    UnknownTopicOrPartitionError,
    WriteIdExpiredError,
)
from spark_log.ids import WriteId
from spark_log.log.append.companions import Replication
from spark_log.log.append.encoding import LOG_DIR_FAILURES, Encoding, SegmentFiles, Target, segment_batch
from spark_log.log.append.failed_append_files import delete_files
from spark_log.log.append.rules import (
    Acks,
    Batch,
    Rejected,
)
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.append.targets import targets_of
from spark_log.log.append.write_ids import Writer
from spark_log.process import in_parallel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Records:
    """Records to append to one partition, in order. `table` has RECORD_SCHEMA."""

    partition: int
    table: pa.Table
    sequence: ProducerSequence | None = None


class BatchFiles:
    """Writes files into the log dirs of the leader and the ISR. Safe to share between threads."""

    def __init__(self, cluster: Cluster, writer: Writer, replication: Replication) -> None:
        self._cluster, self._writer, self._replication = cluster, writer, replication

    def write(
        self, items: Sequence[tuple[Topic, Records]], encodings: Mapping[int, Encoding], acks: Acks, timeout_ms: int
    ) -> tuple[WriteId, list[Batch | Rejected]]:
        """Write a file for each item. If no log dir of a partition takes its file, log dirs are inspected,
        and these files are written once more.
        """
        write_id, outcomes = self._write_files(items, encodings, acks, timeout_ms)
        again = [
            number
            for number, (item, outcome) in enumerate(zip(items, outcomes, strict=True))
            if isinstance(outcome, Rejected)
            and isinstance(outcome.error, (NotLeaderForPartitionError, *LOG_DIR_FAILURES))
            and item[0].replication_factor > 1  # another replica could become leader
        ]
        if not again:
            return write_id, outcomes
        try:
            self._replication.detect_failures()
            second, rewritten = self._write_files([items[number] for number in again], encodings, acks, timeout_ms)
            for number, outcome in zip(again, rewritten, strict=True):
                outcomes[number] = outcome
            if second != write_id:  # a request has one write id
                raise WriteIdExpiredError(f"write id {write_id} has expired during the append: write the files again")
        except Exception:
            topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
            delete_files(self._cluster, topics, [each for each in outcomes if isinstance(each, Batch)])
            raise
        return write_id, outcomes

    def _write_files(
        self, items: Sequence[tuple[Topic, Records]], encodings: Mapping[int, Encoding], acks: Acks, timeout_ms: int
    ) -> tuple[WriteId, list[Batch | Rejected]]:
        """Write a segment file for each item, in parallel: encoding and the disk let other threads run."""
        partitions: dict[int, set[int]] = {}
        for topic, item in items:
            partitions.setdefault(topic.topic_id, set()).add(item.partition)
        topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
        targets = {
            (topic_id, number): target
            for topic_id, numbers in partitions.items()
            for number, target in self.targets(topics[topic_id], sorted(numbers), acks, timeout_ms).items()
        }
        infos = self._cluster.log_dirs(timeout_ms=timeout_ms)
        names = [self._writer.file_name() for _ in items]
        if len({write_id for write_id, _ in names}) > 1:
            raise WriteIdExpiredError(f"write id {names[0][0]} has expired during the append: write the files again")

        def write(item: tuple[Topic, Records], name: str) -> Batch:
            topic, records = item
            target = targets.get((topic.topic_id, records.partition))
            if target is None:
                raise unknown_partition(topic, records.partition)
            encoding = encodings[topic.topic_id]
            path = segment_path(topic.folder, records.partition, name)
            try:
                files = SegmentFiles(target.choose(infos), self._cluster.log_dir, path, encoding)
                try:
                    files.append(records.table)
                    facts = files.commit()
                except BaseException:
                    files.abort()
                    raise
            except LOG_DIR_FAILURES:
                for log_dir_id in target.log_dirs.values():
                    report_failure(self._cluster.store, log_dir_id, records.table.nbytes)
                raise
            except WriteIdExpiredError:
                self._writer.forget()
                raise
            return segment_batch(target, name, facts, encoding, files.brokers, records.sequence)

        def try_writing(named: tuple[tuple[Topic, Records], str]) -> Batch | Exception:
            try:
                return write(*named)
            except Exception as error:
                return error

        named = list(zip(items, (name for _, name in names), strict=True))
        if len(items) == 1:
            outcomes = [try_writing(named[0])]
        else:
            outcomes = in_parallel(try_writing, named, os.cpu_count() or 1, "spark-log-write")
        for outcome in outcomes:
            if isinstance(outcome, WriteIdExpiredError):  # all files have this write id
                delete_files(self._cluster, topics, [batch for batch in outcomes if isinstance(batch, Batch)])
                raise outcome
        return names[0][0], [
            refusal(topic, item, outcome) if isinstance(outcome, Exception) else outcome
            for (topic, item), outcome in zip(items, outcomes, strict=True)
        ]

    def targets(self, topic: Topic, partitions: Sequence[int], acks: Acks, timeout_ms: int) -> dict[int, Target]:
        return self._cluster.store.read(
            lambda connection: targets_of(connection, topic, partitions, acks), timeout_ms=timeout_ms
        )


def refusal(topic: Topic, item: Records, error: Exception) -> Rejected:
    if isinstance(error, SparkLogError):
        return Rejected(error)
    logger.error("%s-%s: records cannot be written", topic.name, item.partition, exc_info=error)
    return Rejected(SparkLogError(f"{topic.name}-{item.partition}: records cannot be written: {error}"))


def unknown_partition(topic: Topic, partition: int) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"partition {topic.name}-{partition}: unknown topic or partition")
