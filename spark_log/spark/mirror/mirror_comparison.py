"""Compares the partitions of a topic with those of its copy, and finds the records that the copy lacks. Driver."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import DataLossError, OffsetOutOfRangeError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.reader import LogReader
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema
from spark_log.log.segments.slices import Positions
from spark_log.spark.mirror.mirror_positions import (
    IDENTICAL,
    MirrorPosition,
    SourcePartition,
    TargetPartition,
    compare,
    next_range,
    read_target,
)
from spark_log.spark.mirror.mirror_topics import Pair, recreated

logger = logging.getLogger(__name__)

_COMPARED_OFFSETS = 100
"""Number of offsets at the end of the target's log whose records are compared with those of the source."""
_COMPARED_SCHEMA = read_schema(True, ["offset", *RECORD_SCHEMA.names])


class Lacking(NamedTuple):
    """The offsets that a partition of the target lacks, and the mirror's position at the target's log end."""

    range: OffsetRange
    position: MirrorPosition
    begun: bool
    """Whether the target has ever had records."""
    unsaved: bool
    """Whether the target was compared with the source, so that the position has to be stored."""

    def at(self, end: int) -> MirrorPosition:
        return replace(self.position, end_offset=end)


@dataclass(frozen=True)
class TopicComparison:
    """Compares topics of the source with their copies in the cluster `target`."""

    target: Cluster
    source_log: LogReader
    target_log: LogReader
    allow_data_loss: bool

    def lacking(self, pair: Pair, source: Mapping[TopicPartition, SourcePartition]) -> dict[TopicPartition, Lacking]:
        """Return what the target lacks, by partition of the source. `source` has the partitions of the source.

        Raises OffsetOutOfRangeError if the target has other records than the source, and DataLossError if the source's
        topic was recreated, or if it deleted records that the target lacks or truncated records that the target has.
        """
        lacking_of: dict[TopicPartition, Lacking] = {}
        for number, target in self._target_partitions(pair.target).items():
            tp = TopicPartition(pair.source.name, number)
            where, here = f"{pair.target.name}-{number}", source.get(tp)
            if here is None:
                raise recreated(pair.source.name)
            comparison = compare(where, here, target)
            if comparison.diverged_from is not None:
                self._report_divergence(where, comparison.diverged_from, target.log.end)
            elif comparison.unverified_from is not None:
                self._compare_last_records(tp, pair, here.positions, target, comparison.unverified_from)
            begun = target.log.end > 0 or bool(target.truncations)
            offsets = next_range(
                where,
                here.positions,
                target.log,
                begun=begun,
                ahead=target.known is not None,
                allow_data_loss=self.allow_data_loss,
            )
            position = MirrorPosition(
                here.cluster_id, here.topic_uuid, here.leader_epoch, target.log.end, target.leader_epoch
            )
            lacking_of[tp] = Lacking(offsets, position, begun, unsaved=comparison != IDENTICAL)
        return lacking_of

    def _target_partitions(self, topic: Topic) -> dict[int, TargetPartition]:
        return self.target.of(topic).store.read(lambda connection: read_target(connection, topic.topic_id))

    def _report_divergence(self, where: str, start: int, end: int) -> None:
        loss = (
            f"{where}: the records with the offsets [{start}, {end}) were truncated in the source by an unclean leader"
            " election after they were copied"
        )
        if not self.allow_data_loss:
            raise DataLossError(f"{loss} (--allow-data-loss keeps them and continues after them)")
        logger.warning("%s: the target keeps them, and the mirror continues after them", loss)

    def _compare_last_records(
        self, tp: TopicPartition, pair: Pair, source: Positions, target: TargetPartition, first: int
    ) -> None:
        """Raise OffsetOutOfRangeError if the target's last records, from offset `first` on, differ from the source's
        records at the same offsets.

        Records that compaction or retention has removed on either side are not compared.
        """
        end = min(target.high_watermark, source.high_watermark)
        start = max(target.log.start, source.log_start_offset, end - _COMPARED_OFFSETS, first)
        if start >= end:
            return
        compared = OffsetRange(start, end)
        ours = self._records(self.target_log, TopicPartition(pair.target.name, tp.partition), compared)
        theirs = self._records(self.source_log, tp, compared)
        for offset in sorted(ours.keys() & theirs.keys()):
            if ours[offset] != theirs[offset]:
                raise OffsetOutOfRangeError(
                    f"{pair.target.name}-{tp.partition}: the record at offset {offset} of the target is not the"
                    " source's: something else has written to it, or the source was deleted and created again"
                )

    def _records(self, log: LogReader, tp: TopicPartition, where: OffsetRange) -> dict[int, dict[str, object]]:
        rows = (row for batch in log.read({tp: where}, _COMPARED_SCHEMA) for row in batch.to_pylist())
        return {row["offset"]: row for row in rows}
