"""Reads positions and plans from the store for `subscription`, and opens streams for `buffers`."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa
import sqlalchemy as sa
from kafka.structs import TopicPartition

from spark_log import clock, ids
from spark_log.clients.consume.buffers import Buffers, Fetched, Limits, Stream
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.partition_stores import PartitionStores
from spark_log.clients.consume.subscription import PartitionState, Subscription, settle
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.log.columns.column_choice import check_names, chosen_fields, top_columns
from spark_log.log.columns.key_and_value import TYPED
from spark_log.log.partitions.lineage import diverging_offset
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.records.schema import read_schema
from spark_log.log.segments import plan as planner
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import Slice
from spark_log.log.segments.typed_columns import check_typed_columns
from spark_log.process import Stop

logger = logging.getLogger(__name__)

_SCHEMA = read_schema(include_headers=True)
_SEGMENTS_PLANNED = 10_000
"""Maximum number of segments in a plan, over all its partitions."""
_SEGMENTS_MIN, _SEGMENTS_MAX = 8, 500


class Fetching:
    """Fetches records for one consumer. Not thread-safe."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, closed: Stop) -> None:
        """`closed` is set when the consumer is closed."""
        self.buffers = Buffers(Limits(settings.fetch_max_bytes, settings.max_partition_fetch_bytes))
        self.fetcher = Fetcher({})
        self.unknown: set[TopicPartition] = set()
        """Assigned partitions that did not exist at the last read of the store."""
        self.fetch_count = 0
        self.fetch_s = self.fetch_s_max = 0.0
        self.short_bytes = 0
        """Stored bytes that the last `fetch` found but did not open, because they are fewer than fetch_min_bytes."""
        self._stores = PartitionStores(cluster, closed)
        self._settings = settings
        self._known: dict[ids.TopicId, Topic] = {}
        self._columns: tuple[str, ...] | None = None
        self._typed: dict[str, pa.StructType] = {}
        """The chosen typed columns of each topic, with the fields that it had when they were chosen."""

    def choose(self, columns: Sequence[str] | None) -> None:
        """Read these columns from now on; None means all but the typed ones. Fields of typed ones are dotted paths.

        Raises InvalidOptionError for an unknown column.
        """
        chosen = None if columns is None else tuple(columns)
        if chosen == self._columns:
            return
        if chosen is not None:
            check_names(chosen, (*_SCHEMA.names, *TYPED))
        self._columns = chosen
        self._typed.clear()
        for partition, _ in list(self.buffers.items()):  # the positions are at the first record that was not returned
            self.buffers.drop(partition)

    def take(self, subscription: Subscription, rows_max: int | None) -> list[Fetched]:
        """Return buffered records, without reading the store. If a plan has ended, the position moves to its end."""
        self.buffers.keep_only(subscription.partitions)
        self._release(subscription.partitions)
        return self.buffers.take(subscription.fetchable(), rows_max)

    def may_fetch(self, subscription: Subscription) -> bool:
        """Whether `fetch` may find records even if the store has not changed since the last call."""
        for partition, state in subscription.partitions.items():
            if partition in self.buffers or partition in self.unknown:
                continue
            if state.offset is None:
                if state.reset is not None:
                    return True
            elif state.fetchable and (state.high_watermark is None or state.offset < state.high_watermark):
                return True
        return False

    def fetch(self, subscription: Subscription, bytes_min: int) -> bool:
        """Settle positions and open streams for partitions with records to read, all as of one snapshot.

        Return whether streams were opened. If fewer than `bytes_min` stored bytes can be fetched over all partitions,
        no stream is opened. With auto_offset_reset none, raises NoOffsetForPartitionError, OffsetOutOfRangeError or
        LogTruncationError.
        """
        began_s = clock.monotonic_s()
        try:
            return self._fetch(subscription, bytes_min)
        finally:
            seconds = clock.monotonic_s() - began_s
            self.fetch_count += 1
            self.fetch_s += seconds
            self.fetch_s_max = max(self.fetch_s_max, seconds)

    def _fetch(self, subscription: Subscription, bytes_min: int) -> bool:
        self.short_bytes = 0
        states = subscription.partitions

        def fetch(
            view: Cluster, partitions: Collection[TopicPartition], looked_up: Collection[str]
        ) -> tuple[Collection[TopicPartition], bool]:
            return self._fetch_from(view, partitions, looked_up, states, bytes_min)

        return any(self._in_each_store(states, fetch))

    def _fetch_from(
        self,
        view: Cluster,
        requested: Collection[TopicPartition],
        looked_up: Collection[str],
        states: dict[TopicPartition, PartitionState],
        bytes_min: int,
    ) -> tuple[Collection[TopicPartition], bool]:
        """Return the partitions that the store has, and whether streams were opened."""
        with view.store.snapshot() as connection:
            partitions = _positions_here(connection, requested, looked_up)
            self._settle(connection, states, partitions)
            ranges = self._ranges(states, partitions)
            if not ranges:
                return partitions, False
            slices = self._plan(connection, ranges, partitions)
            size = sum(piece.size for piece in slices)
            if size < bytes_min:
                self.short_bytes += size
                return partitions, False
            slices = planner.with_inline_data(connection, slices)
        self._open(view, ranges, slices, partitions)
        for partition in ranges:  # if there is no room for all, those that have waited longest come first
            states[TopicPartition(*partition)] = states.pop(partition)
        return partitions, True

    def settle_positions(self, subscription: Subscription) -> None:
        """Resolve resets and positions that are out of range, without fetching."""
        states = subscription.partitions

        def settle_in(
            view: Cluster, partitions: Collection[TopicPartition], looked_up: Collection[str]
        ) -> tuple[Collection[TopicPartition], bool]:
            with view.store.snapshot() as connection:
                positions = _positions_here(connection, partitions, looked_up)
                self._settle(connection, states, positions)
            return positions, False

        self._in_each_store(states, settle_in)

    def _in_each_store(
        self,
        states: dict[TopicPartition, PartitionState],
        work: Callable[[Cluster, Collection[TopicPartition], Collection[str]], tuple[Collection[TopicPartition], bool]],
    ) -> list[bool]:
        """Call `work(cluster, partitions, looked_up)` for each store, and return the results. `work` returns the
        partitions that the store has, and a result. For the topics of missing partitions, the home store is asked once
        more which store has them; `looked_up` names these topics. Partitions that are still missing are unknown.
        """
        self._forget_others(states)
        pending = [partition for partition, state in states.items() if state.offset is not None or state.reset]
        unknown: set[TopicPartition] = set()
        looked_up: set[str] = set()
        results = []
        while pending:
            missing = []
            for cluster, partitions in self._stores.of(pending):
                with self._stores.attempt(cluster.store_id):
                    found, result = work(cluster, partitions, looked_up)
                    results.append(result)
                    missing += [partition for partition in partitions if partition not in found]
            pending = [partition for partition in missing if partition.topic not in looked_up]
            unknown.update(set(missing).difference(pending))
            names = {partition.topic for partition in pending}
            self._stores.look_up_again(names)
            looked_up |= names
        self._note_unknown(unknown)
        return results

    def _forget_others(self, states: dict[TopicPartition, PartitionState]) -> None:
        """Drop what is cached of topics that are not assigned any more."""
        self._stores.forget_others(states)
        if len(self._known) > len(states):
            topic_ids = {state.topic_id for state in states.values()}
            self._known = {topic_id: topic for topic_id, topic in self._known.items() if topic_id in topic_ids}
        if len(self._typed) > len(states):
            names = {partition.topic for partition in states}
            self._typed = {name: fields for name, fields in self._typed.items() if name in names}

    def _release(self, states: dict[TopicPartition, PartitionState]) -> None:
        """Drop the streams that ended or are not at the position. A position moves to the end of an ended plan."""
        positions = {name: state.offset for name, state in states.items() if state.offset is not None}
        for partition, stream in self.buffers.settle(positions).items():
            states[partition].seek(stream.end, stream.leader_epoch)

    def _settle(
        self,
        connection: sa.Connection,
        states: dict[TopicPartition, PartitionState],
        positions: dict[ids.TopicPartition, planner.PartitionSnapshot],
    ) -> None:
        """Update the positions to the snapshot. Drop the streams of deleted topics, and of logs that were truncated or
        whose segments were replaced, because records may have been erased.
        """
        self._release(states)
        truncations = self._truncations(connection, states, positions)
        for partition, stream in self.buffers.items():
            cut = truncations.get(partition, ())
            here = positions.get(ids.TopicPartition(*partition))
            rewritten = here is not None and here.rewrites != stream.rewrites
            if rewritten or diverging_offset(stream.end, stream.leader_epoch, cut) is not None:
                self.buffers.drop(partition)
        for ours, here in positions.items():
            partition = TopicPartition(*ours)
            state = states[partition]
            if state.topic_id not in (None, here.topic_id):
                self.buffers.drop(partition)
            settle(partition, state, here, truncations.get(partition, ()), self._settings.auto_offset_reset)  # type: ignore[arg-type]

    def _truncations(
        self,
        connection: sa.Connection,
        states: dict[TopicPartition, PartitionState],
        positions: dict[ids.TopicPartition, planner.PartitionSnapshot],
    ) -> dict[TopicPartition, list[Truncation]]:
        """Return truncations of the partitions that had an election since their positions were found. Usually empty."""
        keys: dict[Key, TopicPartition] = {
            (here.topic_id, partition.partition): partition
            for partition, here in positions.items()
            if here.leader_epoch > states[partition].leader_epoch
        }
        return {keys[key]: cut for key, cut in read_truncations(connection, keys).items()}

    def _ranges(
        self,
        states: dict[TopicPartition, PartitionState],
        positions: dict[ids.TopicPartition, planner.PartitionSnapshot],
    ) -> dict[ids.TopicPartition, ids.OffsetRange]:
        """Return the ranges to plan: partitions with records to read and no stream, as many as there is room for."""
        self._release(states)
        room = self.buffers.room()
        ranges: dict[ids.TopicPartition, ids.OffsetRange] = {}
        for partition, here in positions.items():
            state, end = states[partition], here.positions.high_watermark
            if state.fetchable and partition not in self.buffers and state.offset is not None and state.offset < end:
                ranges[partition] = ids.OffsetRange(state.offset, end)
        if len(ranges) > room:
            first = [partition for partition in states if partition in ranges][:room]
            ranges = {partition: ranges[partition] for partition in first}
        return ranges

    def _plan(
        self,
        connection: sa.Connection,
        ranges: dict[ids.TopicPartition, ids.OffsetRange],
        positions: dict[ids.TopicPartition, planner.PartitionSnapshot],
    ) -> list[Slice]:
        """Return the next slices of the ranges, with inline slices up to the limits of a fetch (`bounded`)."""
        topics = self._topics_of(connection, ranges, positions)
        segments_max = max(_SEGMENTS_MIN, min(_SEGMENTS_MAX, _SEGMENTS_PLANNED // len(ranges)))
        slices = planner.plan(
            connection, topics, ranges, segments_max=segments_max, rack=self._settings.client_rack or None
        )
        return planner.bounded(slices, self._settings.max_partition_fetch_bytes, self._settings.fetch_max_bytes)

    def _topics_of(
        self,
        connection: sa.Connection,
        partitions: Collection[ids.TopicPartition],
        positions: dict[ids.TopicPartition, planner.PartitionSnapshot],
    ) -> dict[str, Topic]:
        """Return the topics by name. Each is read once, because a plan needs only properties that never change for a
        topic id. Typed columns can change: if some are chosen, the topics are read again.
        """
        topic_ids = {name: positions[ids.TopicPartition(name, number)].topic_id for name, number in partitions}
        typed = self._columns is not None and not set(top_columns(self._columns)).isdisjoint(TYPED)
        unknown = [name for name, topic_id in topic_ids.items() if typed or topic_id not in self._known]
        if unknown:
            topics = find_topics(connection, unknown, only_live=False)
            self._known.update((topic.topic_id, topic) for topic in topics.values())
        return {name: self._known[topic_id] for name, topic_id in topic_ids.items()}

    def _open(
        self,
        cluster: Cluster,
        ranges: dict[ids.TopicPartition, ids.OffsetRange],
        slices: list[Slice],
        positions: dict[ids.TopicPartition, planner.PartitionSnapshot],
    ) -> None:
        if self.fetcher.renewal_due(slices):
            self.fetcher.renew(cluster.log_dirs)
        by_partition: dict[ids.TopicPartition, deque[Slice]] = {partition: deque() for partition in ranges}
        for piece in slices:
            by_partition[piece.topic_partition].append(piece)
        for partition, (start, end) in ranges.items():
            pieces = by_partition[partition]
            stop = pieces[-1].end if pieces else end
            here = positions[partition]
            stream = Stream(start, stop, here.leader_epoch, self._read(pieces), here.rewrites)
            self.buffers.add(TopicPartition(*partition), stream)

    def _read(self, pieces: deque[Slice]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the batches of the slices with their leader epochs. A slice's inline bytes are freed after its read."""
        while pieces:
            leader_epoch = pieces[0].leader_epoch
            schema = self._schema_of(pieces[0])
            for batch in self.fetcher.read(_popped(pieces), schema):
                yield batch, leader_epoch

    def _schema_of(self, piece: Slice) -> pa.Schema:
        """Return the columns to read: the chosen ones, and offset for the position."""
        if self._columns is None:
            return _SCHEMA
        names = {"offset", *top_columns(self._columns)}
        typed = None
        if not names.isdisjoint(TYPED):
            if piece.topic not in self._typed:
                columns = check_typed_columns(piece.topic, piece.columns, names)
                self._typed[piece.topic] = chosen_fields(columns.fields, self._columns)
            typed = self._typed[piece.topic]
        return read_schema("headers" in names, tuple(names), typed)

    def _note_unknown(self, missing: set[TopicPartition]) -> None:
        for partition in missing - self.unknown:
            logger.warning("%s-%s: unknown topic or partition, looked for again when the store changes", *partition)
            self.buffers.drop(partition)
        self.unknown = missing


def _positions_here(
    connection: sa.Connection, partitions: Collection[TopicPartition], looked_up: Collection[str]
) -> dict[ids.TopicPartition, planner.PartitionSnapshot]:
    """Return the positions of the partitions that the store has. A frozen partition counts only if the home store
    has named this store again: else another store may have the topic, with newer records and commits.
    """
    positions = planner.find_positions(connection, partitions)
    return {tp: here for tp, here in positions.items() if not here.frozen or tp.topic in looked_up}


def _popped(pieces: deque[Slice]) -> Iterator[Slice]:
    """Yield the first slice and keep no reference to it."""
    yield pieces.popleft()
