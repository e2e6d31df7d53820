"""Inspects log dirs. The controller marks failed ones offline, and online again when they answer.

A log dir has a marker file with its id and its counter. When a log dir answers again, its files are listed, and the LEO
of each of its replicas falls to the first missing file. If the log dir is empty then (a new disk), it gets a new id. A
mount point without its disk looks empty too: so a log dir should be a folder on the disk, not the mount point.

A log dir is declared failed only if another log dir answers. So a host that has lost all its mounts causes no election.
"""

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.brokers import change_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.files.disk_calls import CALL_S_MAX
from spark_log.cluster.lease import Fence
from spark_log.cluster.log_dir import ANSWER_S_MAX, LogDir, Marker
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import (
    DiskFullError,
    LogDirMismatchError,
    SparkLogError,
    UnsafePathError,
    redact,
)
from spark_log.ids import BrokerId, LogDirId, StoreId
from spark_log.log.partitions.partition_rows import Key, lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import PartitionState, fence_writers, lose_files
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import LOG_DIR, PARTITION, PUBLICATION, REPLICA, SEGMENT
from spark_log.metadata.store import Store
from spark_log.process import ask_in_thread, begin_or_run
from spark_log.tables.publication_resets import compare_whole_tables

logger = logging.getLogger(__name__)

_BACK_S_MAX = 3.0
"""The longest time that an inspection waits while files of log dirs that answer again are listed. The sum of this and
ANSWER_S_MAX is below controller.lease.ms, so that leaders can still be elected after the inspection.
"""


_TRIAL_EVERY_S = 2 * CALL_S_MAX
"""The interval of trial writes. Before the next one begins, a hanging one has failed and an inspection has seen it."""


class _Trial(NamedTuple):
    """A trial write. `of_online` tells whether the log dir was online when the write began."""

    answer: "Future[int]"
    began_s: float
    of_online: bool

    @property
    def failed(self) -> bool:
        return self.answer.done() and self.answer.exception() is not None


_trials: dict[str, _Trial] = {}
"""The last trial write of this process to each log dir, by the log dir's UUID."""


@dataclass(frozen=True)
class LogDirAnswer:
    """The result of inspecting a log dir. `failure` is None if the log dir answers. `empty` means that it has no files,
    or no marker of this store.

    `counter` is that of the marker, or -1 without a marker, or if the marker has a former id.
    """

    failure: str | None
    empty: bool = False
    counter: int = -1


@dataclass(frozen=True)
class RegisteredLogDir:
    """A log dir in the metadata. `suspect_bytes` is the size of a file that a writer failed to write there."""

    log_dir_id: LogDirId
    broker_id: BrokerId
    uri: str
    uuid: str
    store_id: StoreId
    counter: int
    online: bool
    suspect_bytes: int | None


@dataclass(frozen=True)
class InspectionResult:
    """The result of an inspection. `out` are the log dirs to mark offline, with the reasons. `back` are those to mark
    online after a check of their files. A log dir that came back in another state is in both. `checks` are the checks
    of files that still run in threads.
    """

    out: Mapping[LogDirId, str]
    back: Sequence[LogDirId]
    checks: Sequence["Future[None]"] = ()


def inspection_result(
    log_dirs: Sequence[RegisteredLogDir], answers: Mapping[LogDirId, LogDirAnswer]
) -> InspectionResult:
    """Decide from the answers which log dirs change. If no log dir answered, none changes. Pure."""
    out: dict[LogDirId, str] = {}
    back: list[LogDirId] = []
    for log_dir in log_dirs:
        answer = answers[log_dir.log_dir_id]
        if answer.failure is not None:
            reason: str | None = answer.failure
        elif answer.empty:
            reason = "it came back empty"
        elif answer.counter != log_dir.counter:
            reason = f"it came back in another state: counter {answer.counter}, where {log_dir.counter} was expected"
        else:
            reason = None
        if reason is not None and log_dir.online:
            out[log_dir.log_dir_id] = reason
        if answer.failure is None and (reason is not None or not log_dir.online):
            back.append(log_dir.log_dir_id)
    if all(answers[log_dir.log_dir_id].failure is not None for log_dir in log_dirs):
        return InspectionResult({}, [])
    return InspectionResult(out, back)


def inspect_log_dirs(cluster: Cluster, fence: Fence) -> InspectionResult:
    """Inspect every log dir. Mark failed ones offline, and those that answer again online. Return the result.

    Other functions elect leaders and copy files. Raises the error of `fence`.
    """
    dirs = cluster.store.read(lambda connection: _read_log_dirs(connection, cluster))
    answers = _ask_all(dirs, cluster.cluster_id)
    verdict = inspection_result(dirs, answers)
    if not verdict.out and not verdict.back and any(answer.failure is not None for answer in answers.values()):
        logger.debug("log dirs that do not answer: %s", [k.log_dir_id for k in dirs if answers[k.log_dir_id].failure])
    for log_dir_id, reason in verdict.out.items():
        _change(cluster.store, fence, [log_dir_id], online=False, failure=reason)
        logger.error("log dir %s is out: %s", log_dir_id, reason)
    cleared = [
        log_dir.log_dir_id
        for log_dir in dirs
        if log_dir.suspect_bytes is not None and answers[log_dir.log_dir_id].failure is None
    ]
    if cleared:
        _change(cluster.store, fence, cleared, suspect_bytes=None)
    back = [log_dir for log_dir in dirs if log_dir.log_dir_id in verdict.back]
    return replace(verdict, checks=_take_back(cluster, fence, back, answers))


def _take_back(
    cluster: Cluster, fence: Fence, log_dirs: Sequence[RegisteredLogDir], answers: Mapping[LogDirId, LogDirAnswer]
) -> "list[Future[None]]":
    """Mark log dirs that answer again online, in threads. Wait at most _BACK_S_MAX for all of them together, so that a
    hanging one does not stop the detection of other failures. Return the checks that still run.
    """
    if not log_dirs:
        return []

    def start(log_dir: RegisteredLogDir) -> "Future[None]":
        question = cluster.cluster_id, log_dir.store_id, log_dir.log_dir_id, log_dir.uri
        work = partial(_mark_online, cluster, fence, log_dir, answers[log_dir.log_dir_id])
        return ask_in_thread("spark-log-log-dir-back", question, work)

    checks = {log_dir.uri: start(log_dir) for log_dir in log_dirs}
    wait(checks.values(), _BACK_S_MAX)
    for uri, check in checks.items():
        error = check.exception() if check.done() else None
        if not check.done():
            logger.info("log dir %s answers again, and its files are still being listed", redact(uri))
        elif isinstance(error, SparkLogError | OSError):  # the next inspection tries again
            logger.warning("log dir %s not taken back: %s", redact(uri), redact(str(error)))
        elif error is not None:
            raise error
    return [check for check in checks.values() if not check.done()]


def _read_log_dirs(connection: sa.Connection, cluster: Cluster) -> list[RegisteredLogDir]:
    rows = connection.execute(sa.select(t.log_dir).order_by(LOG_DIR.log_dir_id)).all()
    return [
        RegisteredLogDir(
            LogDirId(row.log_dir_id), BrokerId(row.broker_id), cluster.absolute(row.uri), row.uuid,
            cluster.store_id, row.counter, bool(row.online), row.suspect_bytes,
        )
        for row in rows
    ]  # fmt: skip


def _ask_all(log_dirs: Sequence[RegisteredLogDir], cluster_id: str) -> dict[LogDirId, LogDirAnswer]:
    """Ask all log dirs in parallel. Wait at most ANSWER_S_MAX for all of them together."""
    ours = frozenset(one.uuid for one in log_dirs)

    def ask(log_dir: RegisteredLogDir) -> "Future[LogDirAnswer]":
        # one question in any state: a log dir that hangs is asked once
        question = replace(log_dir, online=True, counter=0), cluster_id, ours
        return ask_in_thread("spark-log-inspection", question, lambda: _ask(log_dir, cluster_id, ours))

    asked = {one.log_dir_id: ask(one) for one in log_dirs}
    wait(asked.values(), ANSWER_S_MAX)
    missing = LogDirAnswer(f"no answer in {ANSWER_S_MAX:.0f} s")
    return {log_dir_id: answer.result() if answer.done() else missing for log_dir_id, answer in asked.items()}


def _ask(log_dir: RegisteredLogDir, cluster_id: str, uuids: Collection[str]) -> LogDirAnswer:
    try:
        directory = LogDir(log_dir.uri, log_dir.store_id)
        marker = directory.read_marker()
        if (
            marker is None
            and directory.exists()
            and (directory.has_only_tables() or _has_other_marker(directory, log_dir, cluster_id))
        ):
            return LogDirAnswer(None, empty=True)
        # A marker of this broker with an id that no log dir has now counts as a former marker of this log dir: an old
        # disk was mounted again, or a marker was written too late. Before it is marked online, the files are listed.
        formerly = (
            marker is not None
            and (marker.cluster_id, marker.broker_id) == (cluster_id, log_dir.broker_id)
            and marker.uuid not in uuids
        )
        if not formerly:
            directory.verify_now(log_dir.uuid)
        if log_dir.suspect_bytes is not None:
            directory.try_writing(log_dir.suspect_bytes)
        elif directory.local:
            _check_trial(log_dir, directory)
    except (SparkLogError, OSError) as error:
        return LogDirAnswer(redact(str(error)))
    return LogDirAnswer(None, counter=-1 if marker is None or formerly else marker.counter)


def _check_trial(log_dir: RegisteredLogDir, directory: LogDir) -> None:
    """Raise the error of the last trial write to a folder. Begin another one when it is due: a disk whose writes hang
    may answer reads, and then no writer reports the failure. An offline log dir needs a successful trial to come back.

    A trial may take as long as any other write. A full disk is not a failed one: clean-up frees its space.
    """
    trial, now_s = _trials.get(log_dir.uuid), clock.monotonic_s()
    if (
        trial is None
        or now_s - trial.began_s >= _TRIAL_EVERY_S
        or (not log_dir.online and (trial.of_online or trial.failed))
    ):
        answer = begin_or_run(lambda: directory.try_writing(1), "spark-log-trial")
        trial = _trials[log_dir.uuid] = _Trial(answer, now_s, log_dir.online)
    if trial.answer.done() or not log_dir.online:
        with suppress(DiskFullError):
            trial.answer.result()


def _has_other_marker(directory: LogDir, log_dir: RegisteredLogDir, cluster_id: str) -> bool:
    """Whether another store of the cluster has its marker here: the disk was replaced, and that store was faster."""
    return any(
        (marker.cluster_id, marker.broker_id) == (cluster_id, log_dir.broker_id) for marker in directory.markers()
    )


def _change(store: Store, fence: Fence, log_dir_ids: Collection[LogDirId], **values: object) -> None:
    store.transact(lambda connection: change_log_dirs(connection, log_dir_ids, **values), fence=fence, announce=True)


def _mark_online(cluster: Cluster, fence: Fence, log_dir: RegisteredLogDir, answer: LogDirAnswer) -> None:
    """Check the files of an offline log dir, write its marker, and then mark it online.

    The mark is the last step, so that the next inspection can repeat all steps after a crash at any point.
    """
    store = cluster.store
    marker_uuid = log_dir.uuid
    if answer.empty:  # changed in the store before the marker: a marker with an unknown id counts as a former one
        marker_uuid = str(uuid.uuid4())
        before = log_dir
        store.transact(lambda connection: _set(connection, before, uuid=marker_uuid), fence=fence)
        log_dir = replace(log_dir, uuid=marker_uuid)
    directory = LogDir(log_dir.uri, log_dir.store_id)
    topics = store.read(lambda connection: _topics_in(connection, log_dir.log_dir_id))
    fallen = sum(_check_files(store, fence, log_dir, directory, topic) for topic in topics)
    counter = max(log_dir.counter, answer.counter) + 1
    directory.write_marker(Marker(cluster.cluster_id, log_dir.broker_id, marker_uuid, counter))
    back = {"counter": counter, "online": True, "failure": None, "suspect_bytes": None}
    store.transact(lambda connection: _set(connection, log_dir, **back), fence=fence, announce=True)
    logger.warning(
        "log dir %s is back%s: %s of its replicas lack files", redact(log_dir.uri), ", empty" * answer.empty, fallen
    )


def _set(connection: sa.Connection, log_dir: RegisteredLogDir, **values: object) -> None:
    """Change the row of an offline log dir. Raises LogDirMismatchError if the log dir has been online, or got another
    id, since the row was read: then the listed files, perhaps of a thread that hung, are out of date.
    """
    still_offline = ~LOG_DIR.online & (LOG_DIR.counter == log_dir.counter) & (LOG_DIR.uuid == log_dir.uuid)
    if change_log_dirs(connection, [log_dir.log_dir_id], still_offline, **values) != 1:
        raise LogDirMismatchError(f"log dir {redact(log_dir.uri)}: another process has changed it")


def _topics_in(connection: sa.Connection, log_dir_id: LogDirId) -> list[Topic]:
    query = sa.select(REPLICA.topic_id).distinct().where(REPLICA.log_dir_id == log_dir_id)
    here = set(connection.execute(query).scalars())
    return [topic for topic in find_topics(connection).values() if topic.topic_id in here]


def _check_files(store: Store, fence: Fence, log_dir: RegisteredLogDir, directory: LogDir, topic: Topic) -> int:
    """Lower the LEO of the topic's replicas in the log dir to the first segment that is missing or has another size.

    If the topic's folder crosses a symbolic link, all files count as missing, because spark-log follows no links there.
    Writers of the partitions are fenced. Return the number of replicas whose LEO fell.
    """
    log_dir_id = log_dir.log_dir_id
    try:
        sizes = directory.list_files(topic.folder)
    except UnsafePathError as error:
        logger.error("topic %s: all its files in a log dir count as missing: %s", topic.name, redact(str(error)))
        sizes = {}

    def body(connection: sa.Connection) -> int:
        _set(connection, log_dir, online=False)
        here = (REPLICA.topic_id == topic.topic_id) & (REPLICA.log_dir_id == log_dir_id)
        rows = connection.execute(sa.select(REPLICA.partition, REPLICA.broker_id).where(here)).all()
        before = lock_partitions(connection, [(topic.topic_id, row.partition) for row in rows])
        missing = _first_missing(connection, topic, sizes, [row.partition for row in rows])
        after: dict[Key, PartitionState] = {}
        fallen = 0
        for row in rows:
            if (topic.topic_id, row.partition) not in before:
                continue  # the topic is being moved to another store, which inspects its own log dirs
            state = before[topic.topic_id, row.partition]
            lowered = lose_files(state, row.broker_id, missing.get(row.partition, state.log_end_offset))
            fallen += lowered is not state
            after[topic.topic_id, row.partition] = fence_writers(lowered)
        save_partitions(connection, before, after)
        if fallen:  # the topic's Delta table lists files that are missing
            compare_whole_tables(connection, topic.topic_id, PUBLICATION.log_dir_id == log_dir_id)
        return fallen

    return store.transact(body, fence=fence)


def _first_missing(
    connection: sa.Connection, topic: Topic, sizes: Mapping[str, int], partitions: Collection[int]
) -> dict[int, int]:
    """Return the base offset of the first file that is missing or has another size, by partition.

    Files below the log start offset do not count. `sizes` has the size in bytes of each file in the log dir, by path.
    """
    query = (
        sa.select(SEGMENT.partition, SEGMENT.base_offset, SEGMENT.name, SEGMENT.bytes)
        .join(t.partition, (PARTITION.topic_id == SEGMENT.topic_id) & (PARTITION.partition == SEGMENT.partition))
        .where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline, SEGMENT.end_offset > PARTITION.log_start_offset)
        .order_by(SEGMENT.partition, SEGMENT.base_offset)
    )
    first_offsets: dict[int, int] = {}
    wanted = frozenset(partitions)
    for partition, base_offset, name, size in connection.execute(query):
        here = partition in wanted and partition not in first_offsets
        # not `segment_path`: a damaged name counts as a missing file, and does not keep the log dir offline
        if here and sizes.get(f"{topic.folder}/_segments/{partition}/{name}") != size:
            first_offsets[partition] = base_offset
    return first_offsets
