"""Reads and writes the Delta log of a topic's current-state table, in folder `_current` of the topic's folder.

The files are those of the log, `../_segments/..`, each with a deletion vector over the rows that are not current.
deltalake writes no vectors, so this module writes the commits. Other modules open and checkpoint it with deltalake.
"""

import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records.current_rule import LAST, CurrentRule
from spark_log.tables.current.deletion_vectors import Vector
from spark_log.tables.delta_log_repair import TornLogError
from spark_log.tables.delta_table import DELTA_SCHEMA, PARTITION_COLUMNS, TOMBSTONES, TOMBSTONES_KEPT
from spark_log.tables.publication_state import PublishedFile
from spark_log.tables.unopened_commit import commit_path, partition_values, statistics

_ABOVE = "../"
"""The prefix of the paths of files in this table, whose folder is in the topic's folder."""
_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")
_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
_PROPERTIES = {"delta.enableDeletionVectors": "true", TOMBSTONES: TOMBSTONES_KEPT}
_BY_OP, _BY_SEQUENCE = "spark-log.deletes-by-op", "spark-log.order-by-sequence"
_COLUMNS_VERSION = "spark-log.columns-version"


@dataclass(frozen=True)
class CurrentFile:
    """A file that the table lists. `action` is its add action."""

    action: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Return the path relative to the topic's folder; that of a foreign file begins with `_current/`."""
        path = self.action["path"]
        return path.removeprefix(_ABOVE) if path.startswith(_ABOVE) else f"_current/{path}"

    @property
    def partition(self) -> int:
        """Return the partition, -1 for a file of another program without one."""
        number = self.action["partitionValues"].get("partition")
        return -1 if number is None else int(number)

    @property
    def base_offset(self) -> int:
        """Return the base offset, -1 for a file of another program without one."""
        number = self.action["partitionValues"].get("base_offset")
        return -1 if number is None else int(number)

    @property
    def bytes(self) -> int:
        return int(self.action["size"])

    @cached_property
    def record_count(self) -> int:
        return int(json.loads(self.action["stats"])["numRecords"])

    @property
    def vector(self) -> Vector | None:
        descriptor = self.action.get("deletionVector")
        return None if descriptor is None else Vector.of(descriptor)


@dataclass(frozen=True)
class CurrentTable:
    """The table as of one version, which is -1 if there is no table yet. `files` has the files by path."""

    version: int = -1
    transaction_version: int = 0
    schema: str | None = None
    table_id: str | None = None
    rule: CurrentRule = LAST
    """The rule by which the vectors were computed."""
    committed_ms: int = 0
    files: Mapping[str, CurrentFile] = field(default_factory=dict)

    def after(
        self, version: int, actions: Iterable[Mapping[str, Any]], applications: Collection[str]
    ) -> "CurrentTable":
        """Return the table after a commit, or after the actions of a checkpoint on an empty table.

        The actions of a commit have no order: a file is removed with its old vector and added with its new one.
        """
        files, commit = dict(self.files), list(actions)
        for action in commit:
            if removed := action.get("remove"):
                files.pop(CurrentFile(removed).path, None)
        changed: dict[str, Any] = {}
        for action in commit:
            if added := action.get("add"):
                files[CurrentFile(added).path] = CurrentFile(added)
            elif (txn := action.get("txn")) and txn["appId"] in applications:
                changed["transaction_version"] = max(txn["version"], changed.get("transaction_version", 0))
            elif metadata := action.get("metaData"):
                properties = metadata.get("configuration") or {}
                changed |= {"schema": metadata["schemaString"], "table_id": metadata["id"]}
                by_op, by_sequence = (properties.get(name) == "true" for name in (_BY_OP, _BY_SEQUENCE))
                changed["rule"] = CurrentRule(by_op, by_sequence, int(properties.get(_COLUMNS_VERSION, 0)))
            elif info := action.get("commitInfo"):
                changed["committed_ms"] = info.get("timestamp", 0)
        return replace(self, version=version, files=files, **changed)


def open_table(log_dir: LogDir, folder: str, applications: Collection[str]) -> CurrentTable:
    """Return the newest version of the table in this folder. Raises TornLogError if a power loss has torn its log."""
    versions: dict[str, set[int]] = {"json": set(), "checkpoint.parquet": set()}
    for entry in log_dir.entries(f"{folder}/_delta_log"):
        if match := _FILE.fullmatch(entry.name):
            versions[match[2]].add(int(match[1]))
    commits, table = versions["json"], CurrentTable()
    checkpointed = max(versions["checkpoint.parquet"], default=-1)
    if checkpointed >= 0:
        actions = _checkpoint(_content(log_dir, f"{folder}/_delta_log/{checkpointed:020d}.checkpoint.parquet"))
        table = table.after(checkpointed, actions, applications)
        if checkpointed in commits:  # no checkpoint has the time of its commit
            info = (action.get("commitInfo", {}) for action in read_commit(log_dir, folder, checkpointed))
            table = replace(table, committed_ms=max(each.get("timestamp", 0) for each in info))
    elif commits and 0 not in commits:
        raise TornLogError(f"{folder}: neither the first commit nor a checkpoint exists")
    while table.version + 1 in commits:
        table = table.after(table.version + 1, read_commit(log_dir, folder, table.version + 1), applications)
    if commits and max(commits) > table.version:
        raise TornLogError(f"{folder}: commit {table.version + 1} is missing")
    return table


def read_commit(log_dir: LogDir, folder: str, version: int) -> list[Mapping[str, Any]]:
    """Return the actions of a commit."""
    content = _content(log_dir, commit_path(folder, version))
    try:
        return [json.loads(line) for line in content.splitlines()]
    except ValueError as error:
        raise TornLogError(f"{folder}: commit {version} is torn") from error


def _checkpoint(content: bytes) -> Iterator[Mapping[str, Any]]:
    try:
        columns = pq.read_table(pa.BufferReader(content), columns=["add", "txn", "metaData"])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TornLogError(f"a checkpoint is torn: {error}") from error
    for row in columns.to_pylist(maps_as_pydicts="strict"):
        # Parquet has a null for each field that an action lacks
        yield {
            name: {field: value for field, value in action.items() if value is not None}
            for name, action in row.items()
            if action is not None
        }


def _content(log_dir: LogDir, path: str) -> bytes:
    try:
        return log_dir.read(path)
    except CorruptRecordError as error:  # it is missing
        raise TornLogError(str(error)) from error


def schema_of(columns: TopicColumns | None) -> str:
    """Return the schema of the table as the text in its metadata."""
    from deltalake import Schema

    fields = [*DELTA_SCHEMA, *(columns.fields if columns is not None else ())]
    return str(Schema.from_arrow(pa.schema(fields)).to_json())


def commit_actions(
    table: CurrentTable,
    add: Iterable[tuple[PublishedFile | CurrentFile, Vector | None, bool]],
    remove: Iterable[str],
    schema: str,
    rule: CurrentRule,
    applications: Collection[str],
    transaction_version: int | None,
    offsets: Mapping[int, int],
    now_ms: int,
) -> list[dict[str, Any]]:
    """Return the actions of the commit that follows `table`.

    `add` has the files with a new vector, which may be listed already, each with whether readers then see other rows.
    `remove` has the files that the table no longer lists. `offsets` has the new end of each changed partition. Without
    `transaction_version` the next publication does not recognise the commit as its own, and computes all vectors anew.
    """
    info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    actions: list[dict[str, Any]] = [
        {"commitInfo": {**info, "engineInfo": "spark-log", "offsets": {str(n): end for n, end in offsets.items()}}}
    ]
    if table.schema is None:
        actions.append({"protocol": _PROTOCOL})
    if table.schema != schema or table.rule != rule:
        of_rule = {_BY_OP: rule.by_op, _BY_SEQUENCE: rule.by_sequence, _COLUMNS_VERSION: rule.version}
        metadata = {
            "id": table.table_id or str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": PARTITION_COLUMNS,
            "configuration": {**_PROPERTIES, **{name: str(value).lower() for name, value in of_rule.items() if value}},
            "createdTime": now_ms,
        }
        actions.append({"metaData": metadata})
    added = {file.path: (file, vector, changes) for file, vector, changes in add}
    # a commit must not remove and add the same file with the same vector: adding it again is enough
    same = {
        path
        for path, (_, vector, _) in added.items()
        if path in table.files and vector is None and "deletionVector" not in table.files[path].action
    }
    gone = dict.fromkeys(remove, False) | {path: changes for path, (_, _, changes) in added.items()}
    actions += [
        {"remove": _removal(table.files[path], changes, now_ms)}
        for path, changes in gone.items()
        if path in table.files and path not in same
    ]
    actions += [{"add": _addition(file, vector, changes, now_ms)} for file, vector, changes in added.values()]
    if transaction_version is not None:
        actions += [{"txn": {"appId": each, "version": transaction_version}} for each in applications]
    return actions


def _removal(file: CurrentFile, changes: bool, now_ms: int) -> dict[str, Any]:
    """Return the action that removes a file together with its vector, as readers compare both."""
    action = file.action
    vector = action.get("deletionVector")
    return {
        "path": action["path"],
        "deletionTimestamp": now_ms,
        "dataChange": changes,
        "extendedFileMetadata": True,
        "partitionValues": action["partitionValues"],
        "size": action["size"],
        **({} if vector is None else {"deletionVector": vector}),
    }


def _addition(file: PublishedFile | CurrentFile, vector: Vector | None, changes: bool, now_ms: int) -> dict[str, Any]:
    if isinstance(file, CurrentFile):
        action = {name: value for name, value in file.action.items() if name != "deletionVector"}
    else:
        action = {
            "path": f"{_ABOVE}{file.path}",
            "partitionValues": partition_values(file.partition, file.base_offset),
            "size": file.bytes,
            # the bounds of a file include its hidden rows
            "stats": statistics(file)[:-1] + ',"tightBounds":false}',
        }
    action |= {"modificationTime": now_ms, "dataChange": changes}
    return action if vector is None else {**action, "deletionVector": vector.descriptor()}
