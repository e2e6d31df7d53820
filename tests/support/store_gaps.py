"""Changes of the log between two accesses of one call to the metadata store.

A call that takes several snapshots has gaps between them. `StoreGaps` runs a disturbance right before the k-th access;
`DISTURBANCES` are changes of a small cluster; `Matrix` runs calls on copies of the cluster, with each of them in each
gap.
"""

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_log import Admin
from spark_log.cluster.cluster import Cluster
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata.store import Store
from spark_log.replication.controller import log_dir_inspection
from spark_log.replication.controller.topic_operations import add_partitions, delete_topic
from tests.support.records import NOON_MS
from tests.support.topics import append, compact_now, make
from tests.support.waiting import LIMIT_S


class StoreGaps:
    """Counts the accesses of one thread to any store; `disturb_before` makes the k-th one (from 1) wait for an action.

    An access is a snapshot or a transaction: `Store.read` is a snapshot too.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.accesses = 0
        self._thread = threading.get_ident()
        self._counting = False
        self._before = 0
        self._action: Callable[[], object] | None = None
        snapshot, transact = Store.snapshot, Store.transact

        @contextmanager
        def counted_snapshot(store: Store) -> Iterator[Any]:
            self._count()
            with snapshot(store) as connection:
                yield connection

        def counted_transact(store: Store, *arguments: Any, **options: Any) -> Any:
            self._count()
            return transact(store, *arguments, **options)

        patch.setattr(Store, "snapshot", counted_snapshot)
        patch.setattr(Store, "transact", counted_transact)

    @contextmanager
    def disturb_before(self, number: int, action: Callable[[], object] | None) -> Iterator[None]:
        """Count the accesses inside; calls `action` before access `number`, if there are that many."""
        self.accesses, self._before, self._action, self._counting = 0, number, action, True
        try:
            yield
        finally:
            self._counting = False

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """The accesses inside do not count."""
        counting, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = counting

    def _count(self) -> None:
        if not self._counting or threading.get_ident() != self._thread:
            return
        self.accesses += 1
        if self.accesses == self._before and self._action is not None:
            self._counting = False  # the accesses of the action do not count
            self._action()
            self._counting = True


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SECOND = NOON_MS + 1000


# Changes between two accesses ----------------------------------------------------------------------------------------


def _delete(log: ClientLog) -> None:
    delete_topic(log.cluster, "t")


def _recreate(log: ClientLog) -> None:
    """Recreate with fewer partitions, and another record."""
    _delete(log)
    append(log, _make_topic(log.cluster, 1), "new", key=b"n", timestamp_ms=SECOND)


def _recreate_longer(log: ClientLog) -> None:
    """Recreate with as many partitions, the first of which exceeds every offset of the old one."""
    _delete(log)
    append(log, _make_topic(log.cluster, 2), *(f"new{n}" for n in range(9)), key=b"n", timestamp_ms=SECOND)


def _shorten(log: ClientLog) -> None:
    """Delete records up to the middle of a segment."""
    delete_records(log.cluster, {T0: 1})


def _empty(log: ClientLog) -> None:
    """Delete all records."""
    delete_records(log.cluster, {T0: -1, T1: -1})


def _compact(log: ClientLog) -> None:
    compact_now(log.cluster, "t")


def _grow(log: ClientLog) -> None:
    """Append one record to the tail and seal it: its blobs no longer exist."""
    append(log, "t", "more", key=b"m", timestamp_ms=NOON_MS + 9000)
    log.seal(log.find_topic("t"), [0, 1])


def _consume(log: ClientLog) -> None:
    """The group commits the end of the records that were appended meanwhile."""
    _grow(log)
    commit_offsets(log.cluster.store, "g", {T0: 5, T1: 1})


def _add_partition(log: ClientLog) -> None:
    add_partitions(log.cluster, "t", 3)


def _erase(log: ClientLog) -> None:
    erase(log.cluster, "t", [b"a"])


DISTURBANCES = {
    action.__name__.strip("_"): action
    for action in (
        _delete,
        _recreate,
        _recreate_longer,
        _shorten,
        _empty,
        _compact,
        _grow,
        _consume,
        _add_partition,
        _erase,
    )
}


LOSSES = ("delete", "recreate", "recreate_longer", "shorten", "empty")
"""A call interrupted by one of the other changes may fail only if it also fails after that change."""
BESIDE_WRITES = ("delete", "recreate", "empty")
"""For calls that change the log themselves: the topic is deleted, recreated, or empty."""


@dataclass
class Open:
    """A copy of the cluster, as the calls see it."""

    address: str
    log: ClientLog
    open_admin: Callable[[], Admin]

    @property
    def admin(self) -> Admin:
        """An Admin, which is opened before the first access of the call."""
        return self.open_admin()


@dataclass(frozen=True)
class Call:
    """`documented`: the functions or classes whose docstrings name the errors."""

    run: Callable[[Open], Any]
    documented: Any
    between: Callable[[Any, Any, Any], bool] = lambda result, before, after: False
    """Whether a result that differs from those before and after the change is right."""
    bears_loss: bool = False
    """The call skips lost records: it may fail only if it also fails after the change."""
    writes: bool = False
    """The call changes the log itself. Other tests check its result."""


def _prepare(folder: Path) -> None:
    """A cluster with a compacted topic `t`: segments and a tail in partition 0, a tail in partition 1; and `u`."""
    with Cluster.init(str(folder)) as cluster:
        log = ClientLog(cluster)
        topic = _make_topic(cluster, 2)
        for number, key in enumerate((b"a", b"b", b"a")):
            append(log, topic, f"{number}", key=key, timestamp_ms=NOON_MS + number)
        log.seal(topic, [0])
        append(log, topic, "3", key=b"c", timestamp_ms=NOON_MS + 3)
        append(log, topic, "other", key=b"a", partition=1, timestamp_ms=NOON_MS)
        append(log, make(cluster, "u"), "u", timestamp_ms=NOON_MS)
        commit_offsets(cluster.store, "g", {T0: 2})
        log.close()


def _make_topic(cluster: Cluster, partitions: int) -> Any:
    return make(cluster, "t", partitions, cleanup_policy="compact,delete", retention_ms="-1")


@dataclass(frozen=True)
class Outcome:
    value: Any = None
    error: Exception | None = None
    accesses: int = 0


class Matrix:
    """Runs calls on copies of one small cluster, and caches the state after each disturbance."""

    def __init__(self, folder: Path, gaps: StoreGaps) -> None:
        self._folder, self._gaps = folder, gaps
        _prepare(folder / "undisturbed")
        for name, disturbance in DISTURBANCES.items():
            shutil.copytree(folder / "undisturbed", folder / name)
            with Cluster.open(str(folder / name)) as cluster:
                log = ClientLog(cluster)
                disturbance(log)
                log.close()

    def alone(self, call: Call, state: str) -> Outcome:
        """The outcome of the call on an undisturbed cluster, in its state after the disturbance of this name."""
        return self._run(call, state, 0, None)

    def disturbed(self, call: Call, name: str, number: int) -> Outcome:
        """The outcome of the call with the disturbance of this name before its access `number`."""
        if call.writes:
            return self._run(call, "undisturbed", number, lambda copy: self._disturb(copy, DISTURBANCES[name]))
        return self._run(call, "undisturbed", number, lambda copy: self._put(copy, name))

    def _disturb(self, copy: Path, disturbance: Callable[[ClientLog], None]) -> None:
        with Cluster.open(str(copy)) as cluster:  # like another process: it does not share the locks of the call
            log = ClientLog(cluster)
            disturbance(log)
            log.close()

    def _put(self, copy: Path, name: str) -> None:
        """Copy the files and rows after the disturbance: ten times as fast as the disturbance itself."""
        shutil.copytree(self._folder / name / "broker-1", copy / "broker-1", dirs_exist_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self._folder / name / "metadata.sqlite")) as source,
            contextlib.closing(sqlite3.connect(copy / "metadata.sqlite")) as target,
        ):
            source.backup(target)

    def _run(self, call: Call, state: str, number: int, action: Callable[[Path], None] | None) -> Outcome:
        copy = self._folder / "copy"
        shutil.copytree(self._folder / state, copy)
        try:
            with Cluster.open(str(copy)) as cluster, contextlib.ExitStack() as stack:
                log = ClientLog(cluster)

                def open_admin() -> Admin:
                    with self._gaps.uncounted():
                        return stack.enter_context(Admin(cluster=str(copy)))

                value, error = None, None
                with self._gaps.disturb_before(number, None if action is None else lambda: action(copy)):
                    try:
                        value = call.run(Open(str(copy), log, open_admin))
                    except Exception as raised:
                        error = raised
                log.close()
                return Outcome(value, error, self._gaps.accesses)
        finally:
            # inspections leave trial writes behind, whose files would keep the folder from being removed
            wait([trial.answer for trial in list(log_dir_inspection._trials.values())], LIMIT_S)
            shutil.rmtree(copy)
