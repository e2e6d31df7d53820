"""Copies topics from one cluster to another. A record keeps its offset, timestamp, key, value and headers.

The target's log end offset is the progress: a step copies from this offset on, and the target refuses an append that
begins elsewhere. So a mirror that was killed continues where the target ends, and two mirrors of the same topic cannot
duplicate a record. If another writer appends to the target, the mirror fails and leaves no hole in the copy. The target
also stores the identity of the source's log (`mirror_positions`): if an unclean leader election in the source truncates
records that were copied, the mirror raises DataLossError. Gaps that compaction left in the source stay gaps; deletions
are not copied. Driver.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import by_store
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    InvalidOptionError,
    MetadataStoreUnavailableError,
    OffsetOutOfRangeError,
    SparkLogError,
    TopicMovedError,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.ids import OffsetRange, StoreId, TopicPartition
from spark_log.log.append import write_ids
from spark_log.log.append.append_transaction import AppendRequest
from spark_log.log.append.encoding import Encoding
from spark_log.log.append.rules import Rejected
from spark_log.log.append.transfer import Transfer, Transferred, cut_pieces
from spark_log.log.partitions.lineage import diverging_offset
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import Positions, Slice
from spark_log.maintenance.client_log import ClientLog, TaskReader
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS
from spark_log.spark.datasource.read.rate_limit import rate_limit
from spark_log.spark.mirror.mirror_comparison import Lacking, TopicComparison
from spark_log.spark.mirror.mirror_groups import copy_groups
from spark_log.spark.mirror.mirror_positions import (
    MirrorPosition,
    SourcePartition,
    read_source,
    refuse_gap,
    save_positions_hook,
    write_positions,
)
from spark_log.spark.mirror.mirror_topics import UNAVAILABLE, MirroredTopics, MirrorSettings, Pair, recreated

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSE_S = 0.2
"""Pause before topics are looked up again because some have moved or a store has failed."""


class Step(NamedTuple):
    """The result of a step. `before` and `after` are the target's log end offsets, by partitions of the target."""

    records: int
    record_bytes: int
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]
    behind: int
    """Number of offsets of the source that are not copied yet."""


class _TruncatedMeanwhile(SparkLogError):
    """The source was truncated during the step, so the step has to be repeated."""


Ranges = dict[TopicPartition, OffsetRange]
Run = Callable[[Sequence[Transfer]], list[Transferred]]
"""A function that calls `transfer` for each argument, in any process, for example in the tasks of a Spark job."""


@dataclass
class Mirror:
    """Mirrors one open cluster to another. Each step includes new topics that match the pattern. Not thread-safe."""

    source: Cluster
    target: Cluster
    settings: MirrorSettings
    topics: MirroredTopics = field(init=False)
    _source_log: TaskReader = field(init=False)
    _target_log: ClientLog = field(init=False)
    _comparison: TopicComparison = field(init=False)

    def __post_init__(self) -> None:
        if self.source.cluster_id == self.target.cluster_id:
            raise InvalidOptionError("the source and the target are the same cluster")
        self.topics = MirroredTopics(self.source, self.target, self.settings)
        self._source_log = TaskReader(self.source, holder="mirror")
        self._target_log = ClientLog(self.target, holder="mirror")
        self._comparison = TopicComparison(
            self.target, self._source_log, self._target_log, self.settings.allow_data_loss
        )

    def close(self) -> None:
        for log in (self._source_log, self._target_log):
            try:
                log.close()
            except MetadataStoreUnavailableError as error:  # the records are copied; leases expire
                logger.warning("after the mirror: %s", redact(str(error)))

    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that each partition of the target lacks, by partitions of the source.

        Topics that a pattern chose are left out if they have one of these errors; for named topics it is raised:
        OffsetOutOfRangeError if the target has other records than the source, and DataLossError if the source's topic
        was recreated, or if it deleted records that the target lacks or truncated records that the target has.
        """
        lacking_of = self._repeat(lambda: self._lacking(self.topics.pairs()))
        return {tp: lacking.range for tp, lacking in lacking_of.items()}

    def _lacking(self, pairs: Mapping[str, Pair]) -> dict[TopicPartition, Lacking]:
        source: dict[TopicPartition, SourcePartition] = {}
        for store_id in _source_stores(pairs):
            there = [pair.source for pair in pairs.values() if pair.source.store_id == store_id]
            find = partial(read_source, cluster_id=self.source.cluster_id, topics=there)
            source |= self.source.at(store_id).store.read(find)
        lacking_of: dict[TopicPartition, Lacking] = {}
        for name, pair in pairs.items():
            try:
                compared = self._comparison.lacking(pair, source)
            except self.topics.isolated as error:
                self._leave_out(name, error)
                continue
            if len(compared) < pair.target.partition_count:
                self.topics.check_not_moved([name])  # else it was deleted
            lacking_of |= compared
        verified: dict[StoreId, dict[Key, MirrorPosition]] = {}
        for (name, number), lacking in lacking_of.items():
            if lacking.unsaved:
                topic = pairs[name].target
                verified.setdefault(topic.store_id, {})[topic.topic_id, number] = lacking.position
        for store_id, positions in verified.items():
            store = self.target.at(store_id).store
            store.transact(lambda connection: write_positions(connection, positions))  # noqa: B023
        return lacking_of

    def step(self, run: Run, until: Mapping[TopicPartition, int] | None = None) -> Step | None:
        """Copy new records in one append transaction: at most `offsets_per_step_max` offsets, all below those of
        `until`. Return None if there is no new record.

        If a topic that a pattern chose fails, it is left out. Later steps try it again, in a transaction of its own
        after that of the others. Raises an error with all reasons if no topic remains. Topics to which the target
        cannot append now are left out beforehand, and copied with the others once the target can append.
        """
        step = self._repeat(lambda: self._step(run, until))
        self.topics.raise_failures(of_all=True)
        return step

    def copy_groups(self) -> dict[str, int]:
        """Copy committed offsets (`mirror_groups`), except in topics that are left out. Return the number by group."""
        return self._repeat(self._copy_groups)

    def _copy_groups(self) -> dict[str, int]:
        pairs, failed = self.topics.pairs(), self.topics.failed
        return copy_groups(self.source, self.target, {name: pair for name, pair in pairs.items() if name not in failed})

    def _repeat(self, work: Callable[[], T]) -> T:
        """Repeat `work` while the source is truncated meanwhile. Also repeat it, for two minutes, while a topic moves
        to another store, or a data store fails whose topics can be left out.
        """
        until_s: float | None = None
        while True:
            try:
                return work()
            except _TruncatedMeanwhile:
                continue
            except SparkLogError as error:
                until_s = until_s or clock.monotonic_s() + DEFAULT_TIMEOUT_MS / 1000
                if clock.monotonic_s() > until_s or not self.topics.is_transient(error):
                    raise
                logger.info("the mirror looks its topics up again: %s", redact(str(error)))
            time.sleep(_PAUSE_S)

    def _leave_out(self, name: str, error: SparkLogError) -> None:
        """Leave out a failed topic. If it failed because it moved to another store, raises TopicMovedError instead."""
        if name not in self.topics.failed:
            self.topics.check_not_moved([name])
        self.topics.leave_out(name, error)

    def _step(self, run: Run, until: Mapping[TopicPartition, int] | None) -> Step | None:
        pairs = self.topics.pairs()
        lags = self._lacking(pairs)
        lacking = {tp: lag.range for tp, lag in lags.items()}
        complete = {tp.topic for tp in lags} - {tp.topic for tp, offsets in lacking.items() if offsets.size > 0}
        if until is not None:
            lacking = {tp: OffsetRange(r.start, min(r.end, until[tp])) for tp, r in lacking.items() if tp in until}
        lacking = {tp: offsets for tp, offsets in lacking.items() if offsets.size > 0}
        self.topics.try_unavailable_again()
        unavailable = self.topics.leave_out_unavailable(pairs, lacking)
        lacking = {tp: offsets for tp, offsets in lacking.items() if tp.topic not in unavailable}
        taken: Ranges = {}
        done: list[Transferred] = []
        try:
            for ranges, transferred in self._copies(run, pairs, lags, lacking):
                taken |= ranges
                done += transferred
        except (_TruncatedMeanwhile, TopicMovedError, MetadataStoreUnavailableError):
            if not taken:
                raise
        self.topics.mirrored(complete | {tp.topic for tp in taken})
        if not taken:
            return None
        before: dict[TopicPartition, int] = {}
        after: dict[TopicPartition, int] = {}
        for (name, number), (_, end) in taken.items():
            target = pairs[name].target
            before[TopicPartition(target.name, number)] = lags[TopicPartition(name, number)].position.end_offset
            after[TopicPartition(target.name, number)] = end
        return Step(
            sum(transferred.batch.record_count for transferred in done),
            sum(transferred.record_bytes for transferred in done),
            before,
            after,
            sum(offsets.end - (taken[tp].end if tp in taken else offsets.start) for tp, offsets in lacking.items()),
        )

    def _copies(
        self, run: Run, pairs: Mapping[str, Pair], lags: Mapping[TopicPartition, Lacking], lacking: Ranges
    ) -> Iterator[tuple[Ranges, list[Transferred]]]:
        """Copy records of the topics that have not failed, in one store of the target; if all of them fail, in another
        store. Then copy each topic that had failed before by itself.
        """
        failed = self.topics.failed.keys() & {tp.topic for tp in lacking}
        copied = False
        while not copied and (healthy := [tp for tp in lacking if tp.topic not in self.topics.failed]):
            for copy in self._copy(run, pairs, lags, self._share(pairs, {tp: lacking[tp] for tp in healthy})):
                copied = True
                yield copy
        for name in sorted(failed):
            alone = {tp: offsets for tp, offsets in lacking.items() if tp.topic == name}
            yield from self._copy(run, pairs, lags, self._share(pairs, alone))

    def _share(self, pairs: Mapping[str, Pair], lacking: Ranges) -> Ranges:
        """Return the ranges to append together: those of the store that lacks most, within the limit of a step."""
        store_id = _most_behind(pairs, lacking)
        here = {tp: offsets for tp, offsets in lacking.items() if pairs[tp.topic].target.store_id == store_id}
        starts = {tp: offsets.start for tp, offsets in here.items()}
        ends = rate_limit(self.settings.offsets_per_step_max, starts, {tp: r.end for tp, r in here.items()})
        return {tp: OffsetRange(start, ends[tp]) for tp, start in starts.items() if start < ends[tp]}

    def _copy(
        self,
        run: Run,
        pairs: Mapping[str, Pair],
        lags: Mapping[TopicPartition, Lacking],
        taken: Ranges,
        *,
        again: bool = False,
    ) -> Iterator[tuple[Ranges, list[Transferred]]]:
        """Copy the ranges in one append transaction. If a topic fails, copy each half of the topics by itself, so that
        in the end only topics that fail alone are left out. If topics have become unavailable meanwhile, copy the
        others. If partitions only have new leaders, copy all topics once more; `again` marks this second attempt.
        """
        names, unavailable = sorted({tp.topic for tp in taken}), None
        try:
            done = self._copy_ranges(run, pairs, lags, taken)
        except self.topics.isolated as error:
            if len(names) == 1:
                self._leave_out(names[0], error)
                return
            parts = [names[: len(names) // 2], names[len(names) // 2 :]]
        except TopicMovedError:  # the topic is in another store, or will be there soon
            raise
        except UNAVAILABLE:
            unavailable = self.topics.leave_out_unavailable(pairs, taken)
            if not unavailable and (again or not self.topics.isolated):
                raise
            parts = [[name for name in names if name not in unavailable]]
        else:
            yield taken, done
            return
        for part in filter(None, parts):
            ranges = {tp: offsets for tp, offsets in taken.items() if tp.topic in part}
            yield from self._copy(run, pairs, lags, ranges, again=unavailable == set())

    def _copy_ranges(
        self, run: Run, pairs: Mapping[str, Pair], lags: Mapping[TopicPartition, Lacking], taken: Ranges
    ) -> list[Transferred]:
        store = self.target.of(next(pairs[tp.topic].target for tp in taken)).store
        write_id = write_ids.register(store, "mirror", store.settings.spark_write_id_lease_ms)
        try:
            positions = {tp: lags[tp].at(where.end) for tp, where in taken.items()}
            begun = {tp for tp in taken if lags[tp].begun}
            try:
                done = run(self._transfers(pairs, taken, begun, write_id))
            except OffsetOutOfRangeError:
                self._check_not_truncated(pairs, positions)
                raise
            self._check_not_truncated(pairs, positions)
            failpoint("mirror.files-written")
            self._append(pairs, done, write_id, positions)
        except BaseException:
            with contextlib.suppress(SparkLogError):  # without this, the lease expires; clean-up deletes the files
                write_ids.release(store, write_id)
            raise
        return done

    def _check_not_truncated(self, pairs: Mapping[str, Pair], copied: Mapping[TopicPartition, MirrorPosition]) -> None:
        """Raise _TruncatedMeanwhile if the source has truncated records below the positions since these were looked up.
        Then some of the records may have been read before the truncation, and others after it.
        """
        keys: dict[Key, MirrorPosition] = {
            (pairs[tp.topic].source.topic_id, tp.partition): position for tp, position in copied.items()
        }
        truncations: dict[Key, Sequence[Truncation]] = {}
        for store_id in _source_stores({tp.topic: pairs[tp.topic] for tp in copied}):
            read = partial(read_truncations, partitions=keys.keys())
            truncations |= self.source.at(store_id).store.read(read)
        for key, later in truncations.items():
            if diverging_offset(keys[key].end_offset, keys[key].leader_epoch, later) is not None:
                raise _TruncatedMeanwhile

    def _transfers(
        self,
        pairs: Mapping[str, Pair],
        taken: Mapping[TopicPartition, OffsetRange],
        begun: Collection[TopicPartition],
        write_id: str,
    ) -> list[Transfer]:
        limits: dict[TopicPartition, Positions] = {}
        for store_id, topics in by_store(pairs[name].source for name in {name for name, _ in taken}).items():
            limits |= self.source.at(store_id).store.read(partial(planner.positions, topics=topics))
        gone = [tp.topic for tp in taken if tp not in limits]
        if gone:
            raise recreated(gone[0])
        if not self.settings.allow_data_loss:
            for tp in begun:  # retention may have deleted records since the ranges were decided
                refuse_gap(self.topics.named(str(tp)), limits[tp], taken[tp].start)
        readable = {tp: OffsetRange(max(start, limits[tp].log_start_offset), end) for tp, (start, end) in taken.items()}
        plan = self._source_log.plan(readable, topics={name: pair.source for name, pair in pairs.items()})
        slices: dict[TopicPartition, list[Slice]] = {}
        for piece in plan.slices:
            slices.setdefault(piece.topic_partition, []).append(piece)
        target_log_dirs = self.target.log_dirs()
        transfers: list[Transfer] = []
        for name in sorted({name for name, _ in taken}):
            topic = pairs[name].target
            numbers = sorted(number for topic_name, number in taken if topic_name == name)
            targets, encoding = self._target_log.at(topic.store_id).targets(topic, numbers), Encoding.of(topic)
            for number in numbers:
                tp = TopicPartition(name, number)
                transfers += [
                    Transfer(write_id, targets[number], encoding, piece, plan.log_dirs, target_log_dirs)
                    for piece in cut_pieces(slices.get(tp, []), taken[tp], topic.config.segment_bytes)
                ]
        return transfers

    def _append(
        self,
        pairs: Mapping[str, Pair],
        done: Sequence[Transferred],
        write_id: str,
        positions: Mapping[TopicPartition, MirrorPosition],
    ) -> None:
        batches = sorted(
            (each.batch for each in done), key=lambda b: (b.topic_id, b.partition, b.offsets.start if b.offsets else 0)
        )
        blobs = {each.batch.name: each.blob for each in done if each.blob is not None}
        hooks = [
            save_positions_hook(
                {(pairs[name].target.topic_id, number): each for (name, number), each in positions.items()}
            )
        ]
        request = AppendRequest(batches, blobs, atomic=True, write_id=write_id, release_write_id=True, hooks=hooks)
        targets = [pairs[name].target for name in {name for name, _ in positions}]
        topics: dict[int, Topic] = {topic.topic_id: topic for topic in targets}
        result = self._target_log.at(targets[0].store_id).append_batches(request, topics)
        for batch, outcome in zip(batches, result.outcomes, strict=True):
            if isinstance(outcome, Rejected):
                raise type(outcome.error)(f"topic {topics[batch.topic_id].name!r}: {outcome.error}") from outcome.error


def _source_stores(pairs: Mapping[str, Pair]) -> list[StoreId]:
    return sorted({pair.source.store_id for pair in pairs.values()})


def _most_behind(pairs: Mapping[str, Pair], lacking: Mapping[TopicPartition, OffsetRange]) -> StoreId:
    """Return the store of the target whose topics lack the most offsets."""
    sizes: dict[StoreId, int] = {}
    for tp, found in lacking.items():
        store_id = pairs[tp.topic].target.store_id
        sizes[store_id] = sizes.get(store_id, 0) + found.size
    return max(sizes, key=lambda store_id: sizes[store_id])
