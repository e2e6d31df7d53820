"""Opens, creates, compares and commits to a topic's Delta table with deltalake."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_log import clock
from spark_log.cluster.files.disk_calls import Use
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.errors import CorruptRecordError, redact
from spark_log.log.columns.field_paths import contains
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records.schema import SEGMENT_SCHEMA
from spark_log.tables.publication_state import Cursor, ListedFile, PublishedFile
from spark_log.tables.table_changes import (
    ConflictingCommitError,
    Difference,
    OpenTable,
    RefusedCommitError,
    TopicTable,
    difference,
)
from spark_log.tables.unopened_commit import (
    commit_path,
    force_commits,
    is_data_change,
    is_newest,
    partition_values,
    statistics,
)

if TYPE_CHECKING:  # deltalake is imported when a table is published: most clients start without it
    from deltalake import DeltaTable

PARTITION_COLUMNS = ["partition", "base_offset"]
DELTA_SCHEMA = pa.schema([("partition", pa.int32()), ("base_offset", pa.int64()), *SEGMENT_SCHEMA])
"""The columns of every table; its typed columns follow. Readers compute offset = base_offset + offset_delta."""

CHECKPOINT_COMMITS = 100
"""The number of commits since the last checkpoint after which publication says that one is due. Maintenance writes
checkpoints more often.
"""

TOMBSTONES, TOMBSTONES_KEPT = "delta.deletedFileRetentionDuration", "interval 1 days"
"""A table property, and its value. Every checkpoint lists the files that were removed within this time. VACUUM does not
list our hidden folder, and spark-log itself deletes segments.
"""
_EARLIER_TOMBSTONES = "interval 30 days"
"""The value that earlier versions of spark-log set."""

_ACTION_BYTES = 1_000
"""The number of bytes that take as long as one action of a table, 0.1 ms."""

_PROPERTIES = {
    "delta.appendOnly": "true",
    TOMBSTONES: TOMBSTONES_KEPT,
    "delta.logRetentionDuration": "interval 30 days",
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    # Readers use the statistics of all columns that have them (leaf_statistics.LEAVES_MAX), not only of the first 32.
    "delta.dataSkippingNumIndexedCols": "-1",
}


def open_table(log_dir: LogDir, topic: Topic, *, create: bool) -> "DeltaTable | None":
    """Return the topic's table in the log dir. If there is none, create it if `create` is True, or else return None.

    Raises DeltaError if the table cannot be opened.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    location, options = log_dir.location(topic.folder), log_dir.storage_options
    try:
        return DeltaTable(location, storage_options=options)
    except TableNotFoundError:
        if not create:
            return None
    if log_dir.local:
        log_dir.make_folder(f"{topic.folder}/_delta_log")
    try:
        creation = partial(
            DeltaTable.create,
            location,
            schema=DELTA_SCHEMA,
            partition_by=PARTITION_COLUMNS,
            name=topic.name,
            description="A spark-log topic. offset = base_offset + offset_delta. Written by spark-log alone.",
            configuration=_PROPERTIES,
            storage_options=options,
        )
        table = log_dir.in_time(Use.WRITES, creation)
        log_dir.sync(commit_path(topic.folder, table.version()))
        return table
    except DeltaError:  # another publisher created it first
        return DeltaTable(location, storage_options=options)


def add_columns(table: "DeltaTable", typed: pa.StructType) -> bool:
    """Add the typed columns that the table lacks, in a commit of its own on exactly the version that was read.

    Returns whether it lacked any. Raises CommitFailedError if another process committed first. A stream over the table
    stops once at this commit, as at every change of a Delta schema.
    """
    from deltalake import Schema

    if contains(pa.struct(list(pa.schema(table.schema()))), typed):
        return False
    table.alter.add_columns(list(Schema.from_arrow(pa.schema(list(typed))).fields), **_one_commit())
    return True


def shorten_tombstones(table: "DeltaTable") -> bool:
    """Set the present retention of tombstones in a table of an earlier spark-log, in a commit of its own on exactly the
    version that was read.

    Returns whether it did. Raises CommitFailedError if another process committed first.
    """
    if table.metadata().configuration.get(TOMBSTONES) != _EARLIER_TOMBSTONES:
        return False
    table.alter.set_table_properties({TOMBSTONES: TOMBSTONES_KEPT}, **_one_commit())
    return True


def _one_commit(applications: Sequence[str] = (), version: int = 0) -> dict[str, Any]:
    """Return the options of a commit on exactly the version that was read, with app transactions of this version, and
    without deltalake's own maintenance of the log.
    """
    from deltalake import CommitProperties, PostCommitHookProperties, Transaction

    transactions = [Transaction(each, version) for each in applications]
    return {
        "commit_properties": CommitProperties(app_transactions=transactions, max_commit_retries=0),
        "post_commithook_properties": PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    }


def active_files(table: "DeltaTable") -> list[tuple[str, dict[str, Any]]]:
    """Return the paths of the table's active files, with the values that a remove action repeats (the size in bytes,
    `partition` and `base_offset`), and the number of records.
    """
    columns = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    facts = {
        "size": "size_bytes",
        "partition": "partition.partition",
        "base_offset": "partition.base_offset",
        "records": "num_records",
    }
    rows = zip(columns["path"].to_pylist(), *(columns[name].to_pylist() for name in facts.values()), strict=True)
    return [(path, dict(zip(facts, values, strict=True))) for path, *values in rows]


def commit_changes(
    table: "DeltaTable",
    what: Difference,
    active: Mapping[str, dict[str, Any]],
    cursors: Mapping[int, Cursor],
    applications: Sequence[str],
    transaction_version: int,
) -> None:
    """Make one Delta commit on exactly the version that was compared.

    `active` are the active files of that version, and `cursors` decide which added files are data changes. The commit
    has an app transaction of each of the `applications` with `transaction_version`. Raises CommitFailedError if another
    process committed first.
    """
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = clock.wall_ms()
    actions: list[AddAction | RemoveAction] = [
        # never a data change: that would end every stream that reads the table
        RemoveAction(
            path,
            False,
            now_ms,
            active[path]["size"],
            partition_values(active[path]["partition"], active[path]["base_offset"]),
        )
        for path in what.remove
    ]
    for file in what.add:
        values = partition_values(file.partition, file.base_offset)
        actions.append(
            AddAction(file.path, file.bytes, values, now_ms, is_data_change(file, cursors), statistics(file))
        )
    table.create_write_transaction(
        actions,
        mode="append",
        schema=table.schema(),
        partition_by=PARTITION_COLUMNS,
        **_one_commit(applications, transaction_version),
    )


class OpenDelta(OpenTable):
    """A Delta table, as of the version that was opened."""

    def __init__(self, table: TopicTable, delta: "DeltaTable") -> None:
        self._table, self._delta = table, delta
        self._active: dict[str, dict[str, Any]] | None = None

    @property
    def at(self) -> tuple[int, int]:
        return self._transaction_version, self._delta.version()

    @cached_property
    def _transaction_version(self) -> int:
        """Return the version of our last transaction. If an earlier release wrote the table in another store, from
        which the topic was moved, the application id has the uuid of a log dir of that store: one of the last commits
        has it.
        """
        versions = [self._delta.transaction_version(each) or 0 for each in self._table.applications]
        number, prefix = self._delta.version(), f"spark-log/{self._table.topic.uuid}/"
        while not any(versions) and number >= 0 and (actions := self._actions(number)) is not None:
            transactions = [action["txn"] for action in actions if "txn" in action]
            versions += [each["version"] for each in transactions if each["appId"].startswith(prefix)]
            number -= 1
        return max(versions)

    def _active_paths(self) -> Collection[str]:
        if self._active is None:
            self._active = dict(active_files(self._delta))
        return self._active.keys()

    def listed(self) -> Collection[ListedFile]:
        self._active_paths()
        assert self._active is not None
        return [
            ListedFile(path, each["partition"], each["base_offset"], each["size"], each["records"])
            for path, each in self._active.items()
        ]

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        return difference(wanted, self._active_paths())

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        active = self._active_paths()
        return Difference(
            [file for file in wanted if file.path not in active], [path for path in gone if path in active]
        )

    def has_to_change_first(self, columns: TopicColumns | None) -> bool:
        with self._conflicts():
            added = columns is not None and add_columns(self._delta, columns.fields)
            if not added and not shorten_tombstones(self._delta):
                return False
        self._sync(self._delta.version())
        return True

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        # without retries a commit makes exactly the version after the compared one, or fails
        version = self._delta.version() + 1
        assert self._active is not None, "compared before"
        commit = partial(
            commit_changes, self._delta, what, self._active, before, self._table.applications, transaction_version
        )
        with self._conflicts():  # deltalake reads all actions of the table again
            self._table.log_dir.in_time(Use.WRITES, commit, _ACTION_BYTES * len(self._active))
        self._sync(version)
        return version

    def force(self, after: int) -> None:
        force_commits(self._table.log_dir, self._table.folder, after)

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        """Raise ConflictingCommitError if another process commits before the commit of the block. Raises
        RefusedCommitError if deltalake refuses it for another reason, which would last.
        """
        from deltalake.exceptions import CommitFailedError

        version = self._delta.version()
        try:
            yield
        except CommitFailedError as error:
            if not is_newest(self._table.log_dir, self._table.folder, version):
                raise ConflictingCommitError from error
            raise RefusedCommitError(
                f"{self._table.title}: {redact(' '.join(str(error).split()))}. If another program has switched on such"
                " features of Delta, remove them with ALTER TABLE ... DROP FEATURE, or delete the folder _delta_log:"
                " then the next publication makes the table anew"
            ) from error

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        """Return the actions of a commit, None if its file is not there any more."""
        try:
            content = self._table.log_dir.read(commit_path(self._table.folder, version))
            return [json.loads(line) for line in content.splitlines()]
        except CorruptRecordError:
            return None

    def _sync(self, version: int) -> None:
        self._table.log_dir.sync(commit_path(self._table.folder, version))
