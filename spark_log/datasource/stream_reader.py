"""The streaming reader, with admission control and Trigger.AvailableNow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_log import clock
from spark_log.datasource.options import ReadOptions
from spark_log.datasource.stream_offsets import StreamOffset
from spark_log.datasource.tasks import read_task
from spark_log.ids import TopicPartition

if TYPE_CHECKING:
    from spark_log.datasource.planning import Available, ReadPlanner


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Driver: everything but `read`, in one long-lived process. Executor: `read`. Only the names of the columns travel.

    Offsets that Spark stores are `StreamOffset` as JSON: `{"t":{"0":5}}` and what a restart must know besides.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options: ReadOptions | None = options
        self._columns = options.columns
        self._planner: ReadPlanner | None = None
        self._target: StreamOffset | None = None
        self._last_trigger_ms: int | None = None
        self._committed: Mapping[TopicPartition, int] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts (startingOffsets and its kin). Spark asks again when it replays batch 0."""
        planner = self._driver()
        available = planner.available()
        start = planner.offsets(planner.options.starting, available, starting=True)
        cluster_id = planner.cluster.cluster_id
        return StreamOffset(start, topic_ids(available), initial=True, cluster_id=cluster_id).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._driver().options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends: the high watermarks, or less by the rate limit; `start` if it has to wait."""
        planner = self._driver()
        begin = StreamOffset.from_json(start)
        if not begin.initial:  # Spark has done all before `start`, but calls `commit` only once there is a next batch
            self._commit_to_group(begin.offsets)
        available = planner.available(must_exist=False)
        latest = {tp: offsets.end for tp, offsets in available.ranges.items()}
        if self._target is not None:
            latest = {tp: min(end, self._target.offsets.get(tp, 0)) for tp, end in latest.items()}
        ends = self._admitted(begin, available, latest, limit)
        if ends is None or (ends == begin.offsets and not begin.initial and topic_ids(available) == begin.topic_ids):
            return start
        return begin.followed_by(ends, topic_ids(available)).to_json()

    def _admitted(
        self, begin: StreamOffset, available: "Available", latest: dict[Any, int], limit: ReadLimit
    ) -> dict[Any, int] | None:
        from spark_log.datasource.data_loss import admission_starts
        from spark_log.datasource.ranges import rate_limit, should_delay

        if isinstance(limit, ReadAllAvailable):  # Trigger.Once and no limits: all there is
            return latest
        options = self._driver().options
        starts = admission_starts(
            begin.offsets,
            available.ranges,
            start_topic_ids=begin.topic_ids,
            current_topic_ids=topic_ids(available),
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
        return rate_limit(limit.max_rows, starts, latest) if isinstance(limit, ReadMaxRows) else latest

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query at what is there now."""
        available = self._driver().available(must_exist=False)
        ends = {tp: offsets.end for tp, offsets in available.ranges.items()}
        self._target = StreamOffset(ends, topic_ids(available))

    def reportLatestOffset(self) -> dict[str, Any]:
        available = self._driver().available(must_exist=False)
        return StreamOffset({tp: offsets.end for tp, offsets in available.ranges.items()}, {}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch [start, end). DataLossError under failOnDataLoss if some of it is gone."""
        from spark_log.datasource.data_loss import resolve_ranges
        from spark_log.datasource.planning import logger

        planner = self._driver()
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if last.start is not None:  # batch 0: its start was decided when its end was, whatever initialOffset says now
            first = StreamOffset(last.start, last.start_topic_ids or {})
        available = planner.available(must_exist=False)
        resolved = resolve_ranges(
            first.offsets,
            last.offsets,
            available.ranges,
            fail_on_data_loss=planner.options.fail_on_data_loss,
            start_topic_ids=first.topic_ids,
            end_topic_ids=last.topic_ids,
            current_topic_ids=topic_ids(available),
            group_id=planner.options.group_id,
        )
        for loss in resolved.losses:
            logger.warning("%s", loss)
        return planner.tasks(available, resolved.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: with `group.id`, its end offsets become the group's committed offsets."""
        self._commit_to_group(StreamOffset.from_json(end).offsets)

    def _commit_to_group(self, offsets: Mapping[TopicPartition, int]) -> None:
        planner = self._driver()
        if planner.options.group_id is not None and offsets != self._committed:
            from spark_log.groups.offsets import commit_offsets

            commit_offsets(planner.cluster.store, planner.options.group_id, offsets)
            self._committed = offsets

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._columns)

    def _driver(self) -> "ReadPlanner":
        if self._planner is None:
            from spark_log.datasource.planning import ReadPlanner

            assert self._options is not None, "planned on the driver"
            self._planner = ReadPlanner(self._options)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """What executors get: no address of the metadata store."""
        return {
            "_columns": self._columns,
            "_options": None,
            "_planner": None,
            "_target": None,
            "_last_trigger_ms": None,
            "_committed": None,
        }


def topic_ids(available: "Available") -> dict[str, Any]:
    return {name: topic.topic_id for name, topic in available.topics.items()}
