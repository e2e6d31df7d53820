"""Compaction compared with a dictionary: steps change a real partition, and after each step its readable records are
compared with all records that were ever appended. Records with keys and tombstones, written and read as short texts.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from hypothesis import strategies as st

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.failpoints import failpoint
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction import local_compaction as task
from spark_log.maintenance.compaction import passes
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.rewrite.rewrite_plan import plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import discard, swap, write
from spark_log.metadata import tables as t
from spark_log.metadata.store import Store
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from spark_log.tables.seen_offsets import seen_offsets
from tests.support.records import NOON_MS

RETENTION_MS = 100
AWAY = 99
"""The id of a log dir that is offline."""
Patch = Callable[[Any, str, Any], None]
Record = tuple[str | None, str | None, int]
"""Key, value, timestamp in ms."""


class Killed(BaseException):
    """The process ends here: no later step of it runs."""


@dataclass(frozen=True)
class Append:
    records: tuple[tuple[str | None, bool], ...]
    """Key, and whether it is a tombstone."""
    sealed: bool


@dataclass(frozen=True)
class Tick:
    ms: int


@dataclass(frozen=True)
class Compact:
    force: bool
    lost_swap: int | None = None
    """Number of the swap of the pass (from 0) that finds its inputs changed."""
    killed_at: int | None = None
    """Number of the failpoint of the pass (from 0) at which the process is killed."""


@dataclass(frozen=True)
class Merge:
    """All files up to the published offset become one, without regard to compaction."""


@dataclass(frozen=True)
class DeleteRecords:
    count: int


@dataclass(frozen=True)
class ListElsewhere:
    """The table of an offline log dir lists the last `count` files, above a tail at the time. With 0 it is gone."""

    count: int


Step = Append | Tick | Compact | Merge | DeleteRecords | ListElsewhere

_key = st.sampled_from(["a", "b", "c", "d", None])
_append = st.builds(
    Append,
    st.lists(st.tuples(_key, st.sampled_from([False, False, True])), min_size=1, max_size=5).map(tuple),
    st.booleans(),
)
_compact = st.builds(
    Compact,
    st.sampled_from([True, True, False]),
    st.sampled_from([None, None, None, 0, 1]),
    st.sampled_from([None, None, None, 0, 1, 2, 3]),
)
_steps: list[st.SearchStrategy[Step]] = [
    _append,
    _append,
    _compact,
    _compact,
    st.builds(Tick, st.sampled_from([30, 70, 120, 120, -50])),
    st.just(Merge()),
    st.builds(DeleteRecords, st.integers(1, 3)),
    st.builds(ListElsewhere, st.integers(0, 2)),
]
cases = st.tuples(
    st.sampled_from(["14", "2500", "1000000"]),
    st.sampled_from([0, 0, 60]),
    st.lists(st.one_of(_steps), min_size=4, max_size=14),
)
"""segment.bytes, min.compaction.lag.ms, steps."""


@dataclass
class Model:
    """One partition, all records that were appended to it, and the passes over it."""

    cluster: Cluster
    patch: Patch
    topic: Topic
    lag_ms: int
    now_ms: int = 1_700_000_000_000
    appended: dict[int, Record] = field(default_factory=dict)
    there: dict[int, Record] = field(default_factory=dict)
    """The readable records after the last step."""
    passes: list[tuple[int, int]] = field(default_factory=list)
    """End offset and time of each pass that was completed."""
    log_start: int = 0
    listed_from: int | None = None
    """The first offset of the files that an offline table lists above a tail."""
    _known: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, cluster: Cluster, patch: Patch, name: str, segment_bytes: str, lag_ms: int) -> "Model":
        configs = {
            "segment.bytes": segment_bytes,
            "min.compaction.lag.ms": str(lag_ms),
            "delete.retention.ms": str(RETENTION_MS),
            "compression.type": "none",
        }
        # not compacted while it is filled: a topic may become compacted later, and have records without a key
        topic = create_topic(cluster, name, configs=configs)
        assert topic is not None
        model = cls(cluster, patch, topic, lag_ms)
        patch(clock, "wall_ms", lambda: model.now_ms)
        patch(Store, "clock_is_steady", lambda _: True)  # its steps are not those of a clock that is set
        return model

    def run(self, steps: Sequence[Step]) -> None:
        self._log = ClientLog(self.cluster)
        self._context = MaintenanceContext(
            self.cluster, ClusterSettings(), Writer(self.cluster.store, "model", 60_000), topic_names=[self.topic.name]
        )
        for step in steps:
            self.do(step)
        self.come_to_rest()
        self._log.close()

    def do(self, step: Step) -> None:
        self._do(step)
        if self.lag_ms == 0:  # otherwise a merge may have put young records into the clean part
            self._check_clean()

    def _do(self, step: Step) -> None:
        match step:
            case Append(records, sealed):
                self._append(records, sealed)
            case Tick(ms):
                self.now_ms += ms
            case Compact():
                self._compact(step)
                return
            case Merge():
                self._merge()
            case DeleteRecords(count):
                self._delete_records(count)
            case ListElsewhere(count):
                self._list_elsewhere(count)
        found = self._read()
        new = self.appended.keys() - self._known
        self._known |= new
        expected = {o: r for o, r in self.appended.items() if o >= self.log_start and (o in self.there or o in new)}
        assert found == expected, "nothing goes but by a pass"
        self.there = found

    def _append(self, records: Sequence[tuple[str | None, bool]], sealed: bool) -> None:
        first = max(self.appended, default=-1) + 1
        new: dict[int, Record] = {
            first + n: (key, None if tombstone else f"v{first + n}", self.now_ms)
            for n, (key, tombstone) in enumerate(records)
        }
        self.appended.update(new)
        columns = [
            pa.array([key and key.encode() for key, _, _ in new.values()], pa.binary()),
            pa.array([value and value.encode() for _, value, _ in new.values()], pa.binary()),
            pa.nulls(len(new), RECORD_SCHEMA.field("headers").type),
            pa.array(np.full(len(new), self.now_ms * 1000)).cast(RECORD_SCHEMA.field("timestamp").type),
        ]
        self._log.append(self.topic, [Records(0, pa.table(columns, schema=RECORD_SCHEMA))])
        if sealed:
            self._log.seal(self.topic, [0])

    def _merge(self) -> None:
        store = self.cluster.store
        files = store.read(lambda c: segments(c, self.topic, 0, inline=False))
        seen = store.read(lambda c: seen_offsets(c, self.topic, 0))  # no swap spans one
        end = min([_first_gap(files), *(offset for offset in seen if offset > (files[0].base_offset if files else 0))])
        run = [each for each in files if each.end_offset <= end]
        if len(run) > 1 and (self.listed_from is None or end <= self.listed_from):
            with store.snapshot() as connection:
                rewriting = plan_rewriting(connection, self.topic, 0, run)
            assert rewriting is not None
            write_id, name = self._context.writer.file_name()
            written = write(rewriting, name, self.cluster.log_dirs(), self.cluster.log_dir)
            assert swap(self.cluster, write_id, rewriting, written)

    def _delete_records(self, count: int) -> None:
        self.log_start = min(self.log_start + count, len(self.appended))
        delete_records(self.cluster, {TopicPartition(self.topic.name, 0): self.log_start})

    def _list_elsewhere(self, count: int) -> None:
        """A tail lies above the end of each pass so far, since a pass seals it."""

        def list_them(connection: sa.Connection) -> int | None:
            here = {"topic_id": self.topic.topic_id, "partition": 0, "log_dir_id": AWAY, "target": "delta"}
            cursors = t.publication_cursor
            connection.execute(cursors.delete().where(*(cursors.c[name] == value for name, value in here.items())))
            files = [f for f in segments(connection, self.topic, 0, inline=False) if f.base_offset >= first_dirty]
            files = files[max(0, len(files) - count) :]
            if not files:
                return None
            if connection.execute(sa.select(t.log_dir).where(t.log_dir.c.log_dir_id == AWAY)).first() is None:
                [log_dir] = connection.execute(sa.select(t.log_dir)).all()
                there = {"log_dir_id": AWAY, "uri": "file:///away", "uuid": "u", "online": False}
                connection.execute(t.log_dir.insert().values(log_dir._asdict() | there))
            first, limit = files[0].base_offset, files[-1].end_offset
            connection.execute(cursors.insert().values(**here, change=0, high_watermark=limit, seen_offset=first))
            return first

        first_dirty = self._first_dirty()
        self.listed_from = self.cluster.store.transact(list_them)

    def _compact(self, step: Compact) -> None:
        """Run a pass; then check that each removed record may be removed, and the guarantees of a completed pass."""
        horizon = max((end for end, at_ms in self.passes if at_ms <= self.now_ms - RETENTION_MS), default=0)
        before = self._first_dirty()
        notes = self._run_pass(step)
        found = self._read()
        for offset in self.there.keys() - found.keys():
            key, value, at_ms = self.there[offset]
            later = any(k == key and o > offset for o, (k, _, _) in self.appended.items())
            expired = value is None and offset < horizon
            assert key is None or later or expired, f"{offset} is the last of {key!r}"
            clean = offset < before
            assert clean or self.lag_ms == 0 or at_ms <= self.now_ms - self.lag_ms, f"{offset} is too young to go"
        assert found.items() <= self.there.items(), "nothing comes back"
        self.there = found
        assert self._latest(found) == self._latest(self._visible()), "a reader from the start has the same table"
        end = self._first_dirty()
        assert end <= len(self.appended)
        if notes is not None and not any("changed meanwhile" in note for note in notes):
            # nothing interrupted the pass: it was completed, if it was due
            if step.force and self.lag_ms == 0 and self.log_start < len(self.appended) and self.listed_from is None:
                assert end == len(self.appended)
            if end > before or step.force:
                self.passes.append((end, self.now_ms))
                waiting = [o for o, (_, value, _) in found.items() if value is None and o < min(end, horizon)]
                assert not waiting or self.lag_ms, "tombstones go when their time has come"

    def _check_clean(self) -> None:
        clean = [key for offset, (key, _, _) in self.there.items() if offset < self._first_dirty()]
        assert None not in clean
        assert len(set(clean)) == len(clean), "one record of each key below the first dirty offset"

    def _run_pass(self, step: Compact) -> tuple[str, ...] | None:
        """The notes of the report; None if the process was killed."""
        swaps = iter(range(1_000))
        points = iter(range(1_000))

        def swap_or_lose(*arguments: Any) -> bool:
            if next(swaps) == step.lost_swap:
                discard(arguments[0], arguments[2], arguments[3])
                return False
            return swap(*arguments)

        def pass_or_die(_name: str) -> None:
            if next(points) == step.killed_at:
                raise Killed

        self._alter_policy("compact")
        try:
            self.patch(passes, "swap", swap_or_lose)
            self.patch(passes, "failpoint", pass_or_die)
            with contextlib.suppress(Killed):
                return tuple(note for report in task.compact(self._context, force=step.force) for note in report.notes)
            return None
        finally:
            self.patch(passes, "swap", swap)
            self.patch(passes, "failpoint", failpoint)
            self._alter_policy("delete")

    def _alter_policy(self, policy: str) -> None:
        self.topic = alter_configs(self.cluster, self.topic.name, {"cleanup.policy": policy})

    def come_to_rest(self) -> None:
        """Repeated passes with time in between leave only the last values, and then no work is left."""
        self._list_elsewhere(0)
        self.now_ms += 10_000
        self._compact(Compact(force=True))
        self.now_ms += 10_000
        self._compact(Compact(force=False))
        visible = self._latest(self._visible())
        assert {o: r for o, r in self.there.items() if o < self._first_dirty()} == self.there
        assert {key: value for key, value, _ in self.there.values()} == visible, "no tombstone is left"
        assert len(self.there) == len(visible)
        self.now_ms += 10_000
        self._alter_policy("compact")
        assert passes.find_due(self._context, self.topic, 0) is None, "nothing is due"
        with self.cluster.store.snapshot() as connection:
            assert len(passes.read_passes(connection, (self.topic.topic_id, 0))) <= 20

    def _first_dirty(self) -> int:
        with self.cluster.store.snapshot() as connection:
            noted = passes.read_passes(connection, (self.topic.topic_id, 0))
        return max((each.end_offset for each in noted), default=0)

    def _visible(self) -> dict[int, Record]:
        return {offset: record for offset, record in self.appended.items() if offset >= self.log_start}

    def _latest(self, records: dict[int, Record]) -> dict[str | None, str]:
        table: dict[str | None, str | None] = {key: value for key, value, _ in records.values() if key is not None}
        return {key: value for key, value in table.items() if value is not None}

    def _read(self) -> dict[int, Record]:
        [(partition, (start, end))] = self._log.positions(self.topic).items()
        rows = [row for batch in self._log.read({partition: OffsetRange(start, end)}) for row in batch.to_pylist()]
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(set(offsets)), "order"
        found: dict[int, Record] = {
            row["offset"]: (
                row["key"] and row["key"].decode(),
                None if row["value"] is None else row["value"].decode(),
                int(row["timestamp"].timestamp() * 1000),
            )
            for row in rows
        }
        assert found.items() <= self.appended.items(), "each as it was appended, at its offset"
        return found


def _first_gap(files: Sequence[Any]) -> int:
    end = files[0].base_offset if files else 0
    for each in files:
        if each.base_offset != end:
            break
        end = each.end_offset
    return end


def keyed(text: str, timestamp_ms: int = NOON_MS) -> pa.Table:
    """`a1`: key a, value a1. `-a`: a tombstone. `~x`: no key."""
    words = text.split()
    return pa.table(
        [
            pa.array([None if word[0] == "~" else word.lstrip("-")[:1].encode() for word in words], pa.binary()),
            pa.array([None if word[0] == "-" else word.encode() for word in words], pa.binary()),
            pa.nulls(len(words), RECORD_SCHEMA.field("headers").type),
            pa.array([timestamp_ms * 1000] * len(words)).cast(RECORD_SCHEMA.field("timestamp").type),
        ],
        schema=RECORD_SCHEMA,
    )


def append_keyed(log: ClientLog, topic: Topic, *batches: str, partition: int = 0, **columns: Any) -> None:
    """Append batches of `keyed` records."""
    for batch in batches:
        [outcome] = log.append(topic, [Records(partition, keyed(batch, **columns))])
        assert isinstance(outcome, Appended), outcome


def readable(log: ClientLog, topic: Topic, partition: int = 0) -> str:
    """`offset:value` of all readable records."""
    where = TopicPartition(topic.name, partition)
    found = OffsetRange(*log.positions(topic)[where])
    rows = [row for batch in log.read({where: found}) for row in batch.to_pylist()]
    return " ".join(f"{row['offset']}:{(row['value'] or b'-' + row['key']).decode()}" for row in rows)
