"""Reads and writes manifests and manifest lists of Iceberg tables, in Avro. Pure.

https://iceberg.apache.org/spec/#manifests
"""

import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_log.errors import needing
from spark_log.log.columns.field_paths import FIRST_TYPED_ID
from spark_log.tables.iceberg.schema import PARTITION_FIELDS, PARTITION_SPEC

EXISTING, ADDED, DELETED = 0, 1, 2
"""Values of an entry's `status`."""
DATA = 0
"""The `content` of a manifest of data files. Other manifests list delete files, of which spark-log writes none."""

Entry = dict[str, Any]
"""An entry of a manifest: status, snapshot_id, sequence_number, file_sequence_number, and data_file."""
Manifest = dict[str, Any]
"""An entry of a manifest list: the path of a manifest, its counts, and the bounds of its partition fields."""


def _field(name: str, number: int, kind: Any, *, optional: bool = False) -> dict[str, Any]:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": number}
    return {"name": name, "type": kind, "field-id": number}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    pair = [_field("key", key_id, "int"), _field("value", value_id, value)]
    items = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": pair}
    return {"type": "array", "items": items, "logicalType": "map"}


_PARTITION = {
    "type": "record",
    "name": "r102",
    "fields": [
        _field(name, number, kind, optional=True)
        for (name, number), kind in zip(PARTITION_FIELDS, ("int", "long"), strict=True)
    ],
}
_DATA_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        _field("content", 134, "int"),
        _field("file_path", 100, "string"),
        _field("file_format", 101, "string"),
        _field("partition", 102, _PARTITION),
        _field("record_count", 103, "long"),
        _field("file_size_in_bytes", 104, "long"),
        _field("value_counts", 109, _map(119, 120, "long"), optional=True),
        _field("null_value_counts", 110, _map(121, 122, "long"), optional=True),
        _field("lower_bounds", 125, _map(126, 127, "bytes"), optional=True),
        _field("upper_bounds", 128, _map(129, 130, "bytes"), optional=True),
    ],
}
_ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _field("status", 0, "int"),
        _field("snapshot_id", 1, "long", optional=True),
        _field("sequence_number", 3, "long", optional=True),
        _field("file_sequence_number", 4, "long", optional=True),
        _field("data_file", 2, _DATA_FILE),
    ],
}
_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", 509, "boolean"),
        _field("contains_nan", 518, "boolean", optional=True),
        _field("lower_bound", 510, "bytes", optional=True),
        _field("upper_bound", 511, "bytes", optional=True),
    ],
}
_MANIFEST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", 500, "string"),
        _field("manifest_length", 501, "long"),
        _field("partition_spec_id", 502, "int"),
        _field("content", 517, "int"),
        _field("sequence_number", 515, "long"),
        _field("min_sequence_number", 516, "long"),
        _field("added_snapshot_id", 503, "long"),
        _field("added_files_count", 504, "int"),
        _field("existing_files_count", 505, "int"),
        _field("deleted_files_count", 506, "int"),
        _field("added_rows_count", 512, "long"),
        _field("existing_rows_count", 513, "long"),
        _field("deleted_rows_count", 514, "long"),
        _field("partitions", 507, {"type": "array", "items": _SUMMARY, "element-id": 508}, optional=True),
    ],
}


def write_manifest(entries: Sequence[Entry], schema: Mapping[str, Any]) -> bytes:
    """Return the file of a manifest. `schema` is the table's present schema, with its id."""
    metadata = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": json.dumps(PARTITION_SPEC),
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "data",
    }
    return _written(_ENTRY, entries, metadata)


def read_manifest(data: bytes, manifest: Manifest) -> list[Entry]:
    """Return the entries of a manifest that are not deleted, with the values that they inherit from the manifest."""
    entries = _read(_ENTRY, data)
    for entry in entries:
        if entry["snapshot_id"] is None:
            entry["snapshot_id"] = manifest["added_snapshot_id"]
        for name in ("sequence_number", "file_sequence_number"):
            if entry[name] is None:
                entry[name] = manifest["sequence_number"]
    return [entry for entry in entries if entry["status"] != DELETED]


def files_with_bounds(data: bytes) -> list[str]:
    """Return the paths of the files for which a manifest has bounds of fields within the typed columns, including
    deleted files.
    """
    files = [entry["data_file"] for entry in _read(_ENTRY, data)]
    return [
        str(file["file_path"])
        for file in files
        if any(bound["key"] >= FIRST_TYPED_ID for bound in file.get("lower_bounds") or ())
    ]


def describe_manifest(
    path: str, length: int, entries: Sequence[Entry], snapshot_id: int, sequence_number: int
) -> Manifest:
    """Return the entry of the manifest list for a manifest with these entries, which a snapshot adds."""
    names = {EXISTING: "existing", ADDED: "added", DELETED: "deleted"}
    counts: dict[str, int] = {}
    for status, name in names.items():
        rows = [entry["data_file"]["record_count"] for entry in entries if entry["status"] == status]
        counts |= {f"{name}_files_count": len(rows), f"{name}_rows_count": sum(rows)}
    partitions = [entry["data_file"]["partition"] for entry in entries]
    live = [entry["sequence_number"] for entry in entries if entry["status"] != DELETED]
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": sequence_number,
        "min_sequence_number": min(live, default=sequence_number),
        "added_snapshot_id": snapshot_id,
        **counts,
        "partitions": [_summary([each[name] for each in partitions], name) for name, _ in PARTITION_FIELDS],
    }


def may_contain(manifest: Manifest, partition: int | None, base_offset: int | None = None) -> bool:
    """Whether the bounds of a manifest include the partition and the base offset, as far as they are given."""
    if manifest["partition_spec_id"] != 0:  # another program has changed the table's partitions
        return True
    place = zip((partition, base_offset), PARTITION_FIELDS, manifest["partitions"] or (), strict=False)
    return all(
        value is None
        or bounds["lower_bound"] is None
        or bounds["upper_bound"] is None
        or _number(name, bounds["lower_bound"]) <= value <= _number(name, bounds["upper_bound"])
        for value, (name, _), bounds in place
    )


def live_files(manifest: Manifest) -> int:
    return int(manifest["added_files_count"] + manifest["existing_files_count"])


def write_manifest_list(
    manifests: Sequence[Manifest], snapshot_id: int, parent_id: int | None, sequence_number: int
) -> bytes:
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": "2",
    }
    return _written(_MANIFEST, manifests, metadata)


def read_manifest_list(data: bytes) -> list[Manifest]:
    return _read(_MANIFEST, data)


_FORMATS = {"partition": "<i", "base_offset": "<q"}
"""Iceberg's single-value encoding of the partition fields."""


def _number(name: str, value: bytes) -> int:
    return int(struct.unpack(_FORMATS[name], value)[0])


def _summary(values: Sequence[int | None], name: str) -> dict[str, Any]:
    numbers = [value for value in values if value is not None]
    low, high = (
        (None, None) if not numbers else (struct.pack(_FORMATS[name], each) for each in (min(numbers), max(numbers)))
    )
    return {"contains_null": len(numbers) < len(values), "contains_nan": None, "lower_bound": low, "upper_bound": high}


def _written(schema: Mapping[str, Any], records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    fastavro = _fastavro()
    sink = io.BytesIO()
    fastavro.writer(sink, dict(schema), records, codec="deflate", metadata=dict(metadata))
    return sink.getvalue()


def _read(schema: Mapping[str, Any], data: bytes) -> list[dict[str, Any]]:
    fastavro = _fastavro()
    return list(fastavro.reader(io.BytesIO(data), reader_schema=dict(schema)))


def _fastavro() -> Any:
    with needing("an Iceberg table", "iceberg"):
        import fastavro
    return fastavro
