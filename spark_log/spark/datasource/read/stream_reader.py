"""Reads a stream from topics, with admission control and Trigger.AvailableNow."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_log import clock
from spark_log.errors import InvalidOptionError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.spark.datasource.checkpoint.stream_offsets import Positions, StreamOffset
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_task import ReadColumns, read_task
from spark_log.spark.datasource.worker_errors import message_only

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_log.spark.datasource.read.read_planner import Available, ReadPlanner

logger = logging.getLogger(__name__)

_NO_START = "@no-start"
"""The key of an initial offset that holds only an error message. Spark never stores an initial offset."""


@message_only
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. An executor calls `read`; the driver calls all other methods, in one long-lived process. Only the
    names and types of the columns are pickled for executors.

    Spark stores the offsets as the JSON of `StreamOffset`: `{"t":{"0":5}}` with the data that a restart needs.
    """

    def __init__(self, options: Callable[[], ReadOptions] | None, columns: ReadColumns) -> None:
        self._options = options
        self._columns = columns
        self._planner: ReadPlanner | None = None
        self._target: Positions | None = None
        self._last_trigger_ms: int | None = None
        self._committed: Positions | None = None
        self._again_s = 0.0
        self._refused = ""
        self._no_start: SparkLogError | None = None
        """The error of `initialOffset`."""
        self._credit: dict[TopicPartition, int] = {}
        """The part of its shares of maxBytesPerTrigger that each partition has not used, in bytes."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query (startingOffsets and the like). For an invalid start, `latestOffset` raises.

        Spark calls it again to replay batch 0. The start may not exist any more then, but the checkpoint has it.
        """
        planner = self._driver()
        try:
            available = planner.available()
            start, epochs = planner.starting(available)
        except (InvalidOptionError, UnknownTopicOrPartitionError) as error:
            self._no_start = error
            return {_NO_START: str(error)}
        topic_ids = available.topic_ids
        if (lineage := planner.options.starting_lineage) is not None:
            topic_ids, epochs = {**topic_ids, **lineage.topic_ids}, {**epochs, **lineage.epochs}
        positions = Positions(start, topic_ids, epochs)
        return StreamOffset(positions, initial=True, cluster_id=planner.cluster.cluster_id).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._driver().options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch: the high watermarks, lower offsets with a rate limit, or `start` if there
        is no batch yet.
        """
        planner = self._driver()
        begin = self._from_checkpoint(start)
        available = planner.available(must_exist=False)
        # Spark has completed all records before `start`, but calls `commit` only when there is a next batch
        if not begin.initial:
            self._commit_to_group(begin.positions, available)
        latest = available.ends if self._target is None else self._target_ends(begin.positions, available, self._target)
        ends = self._admitted(begin.positions, available, latest, limit)
        if ends is None or (not begin.initial and _is_still(begin.positions, ends, available)):
            return start
        return begin.followed_by(Positions(ends, available.topic_ids, available.epochs)).to_json()

    def _from_checkpoint(self, shown: Mapping[str, Any]) -> StreamOffset:
        """Parse an offset. Raises the error of `initialOffset`, and DataLossError under failOnDataLoss if the offset is
        of another cluster.
        """
        from spark_log.spark.datasource.read.data_loss import another_cluster

        if self._no_start is not None and _NO_START in shown:
            raise self._no_start
        planner, offset = self._driver(), StreamOffset.from_json(shown)
        cluster_id = planner.cluster.cluster_id
        if planner.options.fail_on_data_loss and offset.cluster_id not in (None, cluster_id):
            raise another_cluster(offset.cluster_id, cluster_id)
        return offset.in_cluster(cluster_id)

    def _target_ends(self, begin: Positions, available: "Available", target: Positions) -> dict[TopicPartition, int]:
        """Return the ends with Trigger.AvailableNow: at most the high watermarks when the query began.

        Spark asks for the start of a new query later. If that start is a higher latest offset, the end is not below it.
        """
        starts = {tp: begin.offsets[tp] for tp in _unchanged(begin, available)}
        return {
            tp: min(now.end, max(starts.get(tp, 0), target.offsets.get(tp, now.start)))
            for tp, now in available.ranges.items()
        }

    def _admitted(
        self, begin: Positions, available: "Available", latest: dict[Any, int], limit: ReadLimit
    ) -> dict[Any, int] | None:
        from spark_log.spark.datasource.read.data_loss import admission_starts
        from spark_log.spark.datasource.read.rate_limit import byte_limit, rate_limit, should_delay

        if isinstance(limit, ReadAllAvailable):  # Trigger.Once, and triggers without limits: all available records
            return latest
        options = self._driver().options
        starts = admission_starts(
            begin.offsets,
            available.ranges,
            start_topic_ids=begin.topic_ids,
            current_topic_ids=available.topic_ids,
            start_epochs=begin.epochs,
            truncations=available.truncations,
        )
        if options.min_offsets_per_trigger is not None and self._target is None:
            now_ms = int(clock.monotonic_s() * 1000)
            if should_delay(
                starts,
                latest,
                min_offsets=options.min_offsets_per_trigger,
                max_trigger_delay_ms=options.max_trigger_delay_ms,
                now_ms=now_ms,
                last_trigger_ms=self._last_trigger_ms,
            ):
                return None
            self._last_trigger_ms = now_ms
        ends = rate_limit(limit.max_rows, starts, latest) if isinstance(limit, ReadMaxRows) else latest
        if options.max_bytes_per_trigger is None:
            return ends
        segments = self._driver().segments(available, starts, ends)
        by_bytes, self._credit = byte_limit(options.max_bytes_per_trigger, starts, ends, segments, self._credit)
        return by_bytes

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the current high watermarks."""
        available = self._driver().available(must_exist=False)
        self._target = Positions(available.ends, available.topic_ids)

    def reportLatestOffset(self) -> dict[str, Any]:
        available = self._driver().available(must_exist=False)
        return StreamOffset(Positions(available.ends, {})).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch [start, end). With failOnDataLoss, raises DataLossError for lost records."""
        planner = self._driver()
        last = self._from_checkpoint(end)
        # the start of batch 0 was decided together with its end; a later result of initialOffset does not count
        first = self._from_checkpoint(start).positions if last.start is None else last.start
        available = planner.available(must_exist=False)
        while True:
            ranges = self._resolved(first, last.positions, available, first_batch=last.start is not None)
            tasks = planner.tasks(available, ranges)
            planned, available = available, planner.available(must_exist=False)
            if available.truncations == planned.truncations:
                return tasks
            # otherwise the plan may have been made from another lineage than `end`

    def _resolved(
        self, first: Positions, last: Positions, available: "Available", *, first_batch: bool
    ) -> dict[TopicPartition, OffsetRange]:
        from spark_log.spark.datasource.read.data_loss import resolve_ranges
        from spark_log.spark.datasource.read.read_planner import logger

        options = self._driver().options
        resolved = resolve_ranges(
            first.offsets,
            last.offsets,
            available.ranges,
            fail_on_data_loss=options.fail_on_data_loss,
            start_topic_ids=first.topic_ids,
            end_topic_ids=last.topic_ids,
            current_topic_ids=available.topic_ids,
            start_epochs=first.epochs,
            end_epochs=last.epochs,
            truncations=available.truncations,
            group_id=options.group_id,
            first_batch=first_batch,
        )
        for loss in resolved.losses:
            logger.warning("%s", loss)
        return resolved.ranges

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end offsets of a finished batch to the group of option `group.id`, if it is set."""
        planner = self._driver()
        if planner.options.group_id is not None:
            self._commit_to_group(self._from_checkpoint(end).positions, planner.available(must_exist=False))

    def _commit_to_group(self, positions: Positions, available: "Available") -> None:
        """Commit the positions that are still in the log. The plan of the next batch detects losses."""
        planner = self._driver()
        now_s = clock.monotonic_s()
        if planner.options.group_id is not None and (positions != self._committed or now_s >= self._again_s):
            from spark_log.groups.committed_offsets import AGAIN_S, Commit, commit_offsets

            commits = {
                tp: Commit(positions.offsets[tp], "", positions.epochs.get(tp, -1), available.topics[tp.topic].topic_id)
                for tp in _unchanged(positions, available)
            }
            try:
                commit_offsets(planner.cluster.store, planner.options.group_id, commits)
            except SparkLogError as error:  # the checkpoint decides where the query goes on
                if str(error) != self._refused:
                    logger.warning("group %s: offsets are not committed: %s", planner.options.group_id, error)
                self._refused = str(error)
                return
            self._committed, self._again_s, self._refused = positions, now_s + AGAIN_S, ""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        yield from read_task(partition, self._columns)

    def _driver(self) -> "ReadPlanner":
        if self._planner is None:
            from spark_log.metadata.store import DEFAULT_TIMEOUT_MS
            from spark_log.spark.datasource.read.read_planner import ReadPlanner

            assert self._options is not None, "planned on the driver"
            self._planner = ReadPlanner(self._options())
            self._planner.cluster.store.read_timeout_ms = DEFAULT_TIMEOUT_MS  # a failover ends no query
        return self._planner

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a reader for executors, without the address of the metadata store."""
        return StreamReader, (None, self._columns)


def _is_still(begin: Positions, ends: Mapping[TopicPartition, int], available: "Available") -> bool:
    """Whether a batch from `begin` to `ends` has no records to read, and no changes of topics to store."""
    same = len(_unchanged(begin, available)) == len(begin.offsets)
    return ends == begin.offsets and available.topic_ids == begin.topic_ids and same


def _unchanged(positions: Positions, available: "Available") -> list[TopicPartition]:
    """Return the partitions whose offsets are still positions in the log."""
    from spark_log.spark.datasource.read.data_loss import in_the_log

    return in_the_log(
        positions.offsets,
        topic_ids=positions.topic_ids,
        current_topic_ids=available.topic_ids,
        epochs=positions.epochs,
        truncations=available.truncations,
    )
