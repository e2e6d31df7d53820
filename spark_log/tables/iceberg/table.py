"""Reads the metadata and manifests of a topic's Iceberg table, and makes the metadata of its next version.

The table's location is the topic's folder; its files are those of the log. `metadata_files` opens and commits versions
in the folder itself, `catalog` those of a catalog.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, SparkLogError
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.tables.iceberg import manifests as avro
from spark_log.tables.iceberg.manifests import Entry, Manifest
from spark_log.tables.iceberg.metrics import file_metrics
from spark_log.tables.iceberg.operations import Operation, operations
from spark_log.tables.iceberg.schema import PARTITION_SPEC, iceberg_schema, last_column_id, name_mapping
from spark_log.tables.publication_state import Cursor, ListedFile, PublishedFile

R = TypeVar("R")

ANEW = "Write the table anew with `spark-log table rebuild TOPIC --target iceberg`"
"""The remedy in errors of damaged metadata."""

VERSION = "spark-log.transaction-version"
"""The key in a snapshot's summary for the version of the intent that the commit carries out."""

MANIFEST_FILES = 100
"""A manifest with fewer files is rewritten together with the files that are added next."""
_SMALL_MANIFESTS_MAX = 20
_NAME_MAPPING = "schema.name-mapping.default"
_SEGMENT = re.compile(r"_segments/(\d+)/")


@dataclass(frozen=True)
class IcebergTable:
    """A table as of one version. `metadata` is the content of its metadata file, or None if there is no table yet."""

    log_dir: LogDir
    folder: str
    table_id: str
    version: int
    metadata: Mapping[str, Any] | None

    @property
    def location(self) -> str:
        return self.log_dir.location(self.folder)

    @property
    def transaction_version(self) -> int:
        """Return the version of the last intent that was carried out in the table."""
        snapshots = () if self.metadata is None else reversed(self.metadata["snapshots"])
        return next((int(each["summary"][VERSION]) for each in snapshots if VERSION in each["summary"]), 0)

    @property
    def updated_ms(self) -> int:
        """Return the time of the last commit by the clock of its writer, 0 if there is no table yet."""
        return 0 if self.metadata is None else int(self.metadata["last-updated-ms"])

    def has_schema(self, columns: TopicColumns | None) -> bool:
        """Whether the current schema is that of a topic with these typed columns, or there is no table yet."""
        return self.metadata is None or _has_schema(self.metadata, iceberg_schema(columns))

    def active_files(self) -> dict[str, ListedFile]:
        """Return the files that the table lists, by their paths relative to its location. They include delete files
        that another program may have added.
        """
        entries = [entry for manifest in self._manifests() for entry in self._entries(manifest)]
        return {each.path: each for each in map(self._listed, entries)}

    def find(self, paths: Iterable[str]) -> list[ListedFile]:
        """Return the files at these paths that the table lists. Manifests without their partitions are not read."""
        asked = set(paths)
        partitions = {int(match[1]) if (match := _SEGMENT.match(path)) else None for path in asked}
        listed = [
            self._listed(entry)
            for manifest in (self._manifests() if asked else ())
            if any(avro.may_contain(manifest, partition) for partition in partitions)
            for entry in self._entries(manifest)
        ]
        return [each for each in listed if each.path in asked]

    def _snapshot(self) -> Mapping[str, Any] | None:
        if self.metadata is None:
            return None
        current = self.metadata.get("current-snapshot-id")
        return next((each for each in self.metadata["snapshots"] if each["snapshot-id"] == current), None)

    def manifests_of(self, snapshot: Mapping[str, Any]) -> list[Manifest]:
        return self._read(snapshot["manifest-list"], avro.read_manifest_list)

    def _manifests(self) -> list[Manifest]:
        snapshot = self._snapshot()
        return [] if snapshot is None else self.manifests_of(snapshot)

    def _entries(self, manifest: Manifest) -> list[Entry]:
        return self._read(manifest["manifest_path"], lambda data: avro.read_manifest(data, manifest))

    def _read(self, location: str, decode: Callable[[bytes], R]) -> R:
        """Read a file of the table's metadata. Raises CorruptRecordError if it is missing or damaged, or the table was
        moved.
        """
        relative = location.removeprefix(self.location + "/")
        if relative == location:  # Iceberg's paths are absolute
            raise CorruptRecordError(
                f"the Iceberg table at {self.location} names {location}: it was written at another location. {ANEW}"
            )
        try:
            content = self.log_dir.read(f"{self.folder}/{relative}")
        except CorruptRecordError as error:
            raise CorruptRecordError(f"the Iceberg table's file {location} is missing. {ANEW}") from error
        try:
            return decode(content)
        except (SparkLogError, MemoryError):
            raise
        except Exception as error:  # fastavro raises errors of many kinds
            raise CorruptRecordError(f"the Iceberg table's file {location} is damaged: {error}. {ANEW}") from error

    def _listed(self, entry: Entry) -> ListedFile:
        file = entry["data_file"]
        path = file["file_path"].removeprefix(self.location + "/")
        partition, base_offset = file["partition"]["partition"], file["partition"]["base_offset"]
        return ListedFile(path, partition, base_offset, file["file_size_in_bytes"], file["record_count"])


def next_metadata(
    table: IcebergTable,
    add: Sequence[PublishedFile],
    remove: Sequence[ListedFile],
    cursors: Mapping[int, Cursor],
    columns: TopicColumns | None,
    transaction_version: int,
    now_ms: int,
    retention_ms: int,
) -> dict[str, Any]:
    """Return the metadata of the next version of the table, with one snapshot for each operation, and write the
    manifests and manifest lists of these snapshots.

    `cursors` decide which added files are new to the table. Snapshots older than `retention_ms` leave the metadata.
    """
    table.log_dir.make_folder(f"{table.folder}/metadata")
    commit_ms = max(now_ms, table.updated_ms)  # readers refuse times that go back
    metadata = _with_schema(table, columns, commit_ms)
    writer = _Writer(table, metadata, columns, transaction_version, commit_ms)
    done = operations(add, remove, lambda file: cursors.get(file.partition, Cursor()).has_seen(file))
    for operation in done or [Operation("append", [], [])]:
        writer.add_snapshot(operation)
    _expire(metadata, now_ms, retention_ms)
    return metadata


def new_metadata(location: str, columns: TopicColumns | None, now_ms: int) -> dict[str, Any]:
    """Return the metadata of a table without snapshots."""
    return _with_columns(_new(location), columns) | {"last-updated-ms": now_ms}


class _Writer:
    """Adds snapshots to the metadata of a commit, and writes their manifests."""

    def __init__(
        self,
        table: IcebergTable,
        metadata: dict[str, Any],
        columns: TopicColumns | None,
        transaction_version: int,
        now_ms: int,
    ) -> None:
        self._table, self._metadata, self._columns = table, metadata, columns
        self._version, self._now_ms = transaction_version, now_ms
        self._manifests = table._manifests()
        self._entries: dict[str, list[Entry]] = {}
        [self._schema] = [each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]]

    def add_snapshot(self, operation: Operation) -> None:
        metadata, table = self._metadata, self._table
        parent = metadata.get("current-snapshot-id")
        sequence = metadata["last-sequence-number"] = metadata["last-sequence-number"] + 1
        snapshot_id = _snapshot_id(table.table_id, self._version, sequence)
        self._manifests = [manifest for manifest in self._manifests if avro.live_files(manifest)]
        if operation.remove:
            self._remove({file.path: file for file in operation.remove}, snapshot_id, sequence)
        if operation.add:
            added = [_entry(table.location, file, self._columns, snapshot_id, sequence) for file in operation.add]
            self._add(added, snapshot_id, sequence)
        name = f"snap-{snapshot_id}-{uuid.uuid4()}.avro"
        content = avro.write_manifest_list(self._manifests, snapshot_id, parent, sequence)
        rows = sum(manifest["added_rows_count"] + manifest["existing_rows_count"] for manifest in self._manifests)
        summary = {
            "operation": operation.name,
            VERSION: str(self._version),
            "added-data-files": str(len(operation.add)),
            "added-records": str(sum(file.record_count for file in operation.add)),
            "deleted-data-files": str(len(operation.remove)),
            "deleted-records": str(sum(file.record_count for file in operation.remove)),
            "total-data-files": str(sum(map(avro.live_files, self._manifests))),
            "total-records": str(rows),
        }
        snapshot = {
            "snapshot-id": snapshot_id,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "sequence-number": sequence,
            "timestamp-ms": self._now_ms,
            "manifest-list": self._write(name, content),
            "schema-id": self._schema["schema-id"],
            "summary": summary,
        }
        metadata["snapshots"].append(snapshot)
        metadata["snapshot-log"].append({"timestamp-ms": self._now_ms, "snapshot-id": snapshot_id})
        metadata["current-snapshot-id"] = snapshot_id
        metadata["refs"] = {"main": {"snapshot-id": snapshot_id, "type": "branch"}}

    def _remove(self, removed: Mapping[str, ListedFile], snapshot_id: int, sequence: int) -> None:
        """Rewrite the manifests that list removed data files, and drop those that list removed delete files."""
        kept: list[Manifest] = []
        for manifest in self._manifests:
            may_list = any(avro.may_contain(manifest, each.partition, each.base_offset) for each in removed.values())
            entries = self._live(manifest) if may_list else []
            gone = [self._table._listed(entry).path in removed for entry in entries]
            if not any(gone):
                kept.append(manifest)
            elif manifest["content"] == avro.DATA:
                entries = [
                    {**entry, "status": avro.DELETED, "snapshot_id": snapshot_id} if is_gone else entry
                    for entry, is_gone in zip(entries, gone, strict=True)
                ]
                kept.append(self._write_manifest(entries, snapshot_id, sequence))
        self._manifests = kept

    def _add(self, added: list[Entry], snapshot_id: int, sequence: int) -> None:
        """Write a manifest with the added files and those of one small manifest, or of all small manifests if there are
        many. Manifests that this snapshot has written stay.
        """
        small = [
            each
            for each in self._manifests
            if avro.live_files(each) < MANIFEST_FILES and each["added_snapshot_id"] != snapshot_id
        ]
        joined = small if len(small) > _SMALL_MANIFESTS_MAX else small[-1:]
        entries = [entry for manifest in joined for entry in self._live(manifest)]
        kept = [each for each in self._manifests if each not in joined]
        self._manifests = [*kept, self._write_manifest([*entries, *added], snapshot_id, sequence)]

    def _live(self, manifest: Manifest) -> list[Entry]:
        path = manifest["manifest_path"]
        entries = self._entries[path] if path in self._entries else self._table._entries(manifest)
        return [{**entry, "status": avro.EXISTING} for entry in entries if entry["status"] != avro.DELETED]

    def _write_manifest(self, entries: list[Entry], snapshot_id: int, sequence: int) -> Manifest:
        content = avro.write_manifest(entries, self._schema)
        path = self._write(f"{uuid.uuid4()}-m0.avro", content)
        self._entries[path] = entries
        return avro.describe_manifest(path, len(content), entries, snapshot_id, sequence)

    def _write(self, name: str, content: bytes) -> str:
        relative = f"metadata/{name}"
        file = self._table.log_dir.create(f"{self._table.folder}/{relative}")
        file.write(content)
        file.commit()
        return f"{self._table.location}/{relative}"


def _with_schema(table: IcebergTable, columns: TopicColumns | None, now_ms: int) -> dict[str, Any]:
    """Return a copy of the table's metadata, or those of a new table, whose current schema has these typed columns."""
    metadata = _with_columns(table.metadata or _new(table.location), columns)
    if table.version and table.metadata is not None:
        before = f"{table.location}/metadata/v{table.version}.metadata.json"
        metadata["metadata-log"].append({"timestamp-ms": metadata["last-updated-ms"], "metadata-file": before})
        del metadata["metadata-log"][:-METADATA_FILES]
    metadata["last-updated-ms"] = now_ms
    return metadata


def _with_columns(before: Mapping[str, Any], columns: TopicColumns | None) -> dict[str, Any]:
    schema = iceberg_schema(columns)
    metadata = {name: copy(each) for name, each in before.items()}
    if not _has_schema(metadata, schema):
        # catalogs give an equal schema the same id
        known = (stored["schema-id"] for stored in metadata["schemas"] if stored["fields"] == schema["fields"])
        number = next(known, None)
        if number is None:
            number = max((stored["schema-id"] for stored in metadata["schemas"]), default=-1) + 1
            metadata["schemas"].append({**schema, "schema-id": number})
        metadata["current-schema-id"] = number
        metadata["last-column-id"] = max(metadata["last-column-id"], last_column_id(schema))
        metadata["properties"][_NAME_MAPPING] = name_mapping(schema)
    return metadata


def _has_schema(metadata: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    current = (each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    return any(each["fields"] == schema["fields"] for each in current)


METADATA_FILES = 100
"""Number of earlier metadata files that are kept."""


def _new(location: str) -> dict[str, Any]:
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "schemas": [],
        "current-schema-id": -1,
        "partition-specs": [{"spec-id": 0, "fields": PARTITION_SPEC}],
        "default-spec-id": 0,
        "last-partition-id": PARTITION_SPEC[-1]["field-id"],
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {"gc.enabled": "false"},  # the files are those of the log, which no reader may delete
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
    }


def _expire(metadata: dict[str, Any], now_ms: int, retention_ms: int) -> None:
    """Remove snapshots older than `retention_ms`, but not the current one. The age of snapshots from a host whose clock
    was ahead is not known: the last METADATA_FILES of them stay.
    """
    current = metadata["current-snapshot-id"]
    of_unknown_age = [each["snapshot-id"] for each in metadata["snapshots"] if each["timestamp-ms"] > now_ms]
    surplus = set(of_unknown_age[:-METADATA_FILES])
    kept = [
        each
        for each in metadata["snapshots"]
        if each["snapshot-id"] == current
        or (each["timestamp-ms"] >= now_ms - retention_ms and each["snapshot-id"] not in surplus)
    ]
    ids = {each["snapshot-id"] for each in kept}
    metadata["snapshots"] = kept
    metadata["snapshot-log"] = [each for each in metadata["snapshot-log"] if each["snapshot-id"] in ids]


def _entry(location: str, file: PublishedFile, columns: TopicColumns | None, snapshot_id: int, sequence: int) -> Entry:
    data_file = {
        "content": 0,
        "file_path": f"{location}/{file.path}",
        "file_format": "PARQUET",
        "partition": {"partition": file.partition, "base_offset": file.base_offset},
        "record_count": file.record_count,
        "file_size_in_bytes": file.bytes,
        **file_metrics(file, columns),
    }
    return {
        "status": avro.ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": sequence,
        "file_sequence_number": sequence,
        "data_file": data_file,
    }


def _snapshot_id(table_id: str, version: int, sequence: int) -> int:
    """Return an id of 63 bits that is the same at each attempt of one intent on the same table."""
    digest = hashlib.sha256(f"{table_id}/{version}/{sequence}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
