"""Defines the typed columns of a topic's keys and values, and their text in the metadata store."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from spark_log.log.columns import expansion, types
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.field_paths import numbered
from spark_log.log.columns.key_and_value import PARTS, TypedPart

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class TopicColumns:
    """The definitions of a topic's typed columns. `key` or `value` is None if keys or values have none.

    `version` grows with each change of a definition. So all files with one version have the same typed columns, decoded
    in the same way. `earlier_ids` are the field ids that were given before this version.
    """

    version: int
    key: ColumnsDefinition | None = None
    value: ColumnsDefinition | None = None
    earlier_ids: Mapping[str, int] = field(default_factory=dict, compare=False)

    def of(self, source: str) -> ColumnsDefinition | None:
        """Return the definition of the keys or of the values. `source` is key or value."""
        return {"key": self.key, "value": self.value}[source]

    @property
    def parts(self) -> tuple[tuple[TypedPart, ColumnsDefinition], ...]:
        """The parts that have columns, with their definitions."""
        found = ((part, self.of(part.source)) for part in PARTS)
        return tuple((part, definition) for part, definition in found if definition is not None)

    @property
    def fields(self) -> pa.StructType:
        """The typed columns of a file, in order. Each part has an error column, with the reason why the key or value
        could not be decoded, and a struct, which is null if there is a reason or the key or value is null.
        """
        columns: list[tuple[str, pa.DataType]] = []
        for part, definition in self.parts:
            columns += [(part.error, pa.string()), (part.record, definition.fields)]
        return pa.struct(columns)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The ids of the fields within the typed columns, by path (`field_paths`)."""
        return numbered(self.fields, self.earlier_ids)

    @cached_property
    def decodable(self) -> "TopicColumns | None":
        """The columns without the parts whose format is bytes now, which are not decoded any more; None if no part is
        left.
        """
        left = {part.source: each for part, each in self.parts if each.format != "bytes"}
        return replace(self, key=left.get("key"), value=left.get("value"), earlier_ids=self.ids) if left else None


def changed(
    before: TopicColumns | None, key: ColumnsDefinition | None, value: ColumnsDefinition | None
) -> TopicColumns | None:
    """Return the typed columns with these definitions, None without definitions. The version is larger than that of
    `before` if they differ.
    """
    after = (
        TopicColumns(1, key, value) if before is None else replace(before, key=key, value=value, earlier_ids=before.ids)
    )
    if not after.parts:
        return None
    return after if before in (None, after) else replace(after, version=after.version + 1)


def decoded(rows: pa.RecordBatch | pa.Table, columns: TopicColumns, names: Collection[str]) -> dict[str, pa.Array]:
    """Decode the typed columns of these names from the columns key and value of `rows`, and return them by name."""
    arrays: dict[str, pa.Array] = {}
    for part, definition in columns.parts:
        if part.error in names or part.record in names:
            record, reasons = decoder(definition).decode(_values(rows, part))
            errors = pa.nulls(len(record), pa.string()) if reasons is None else reasons
            arrays |= {part.error: errors, part.record: record}
    return {name: array for name, array in arrays.items() if name in names}


def slices(rows: Rows, columns: TopicColumns, names: Collection[str]) -> Iterator[Rows]:
    """Yield `rows` in order, in slices of which the typed columns `names` can be decoded in bounded memory
    (expansion.py).
    """
    wanted = [each for each in columns.parts if each[0].error in names or each[0].record in names]
    sources = [(decoder(definition), _values(rows, part)) for part, definition in wanted]

    def most_values(start: int, end: int) -> float:
        return sum(each.most_values(values.slice(start, end - start)) for each, values in sources)

    for start, end in expansion.slices(rows.num_rows, most_values):
        yield rows.slice(start, end - start)


def _values(rows: pa.RecordBatch | pa.Table, part: TypedPart) -> pa.BinaryArray:
    source = rows.column(part.source)
    return source.combine_chunks() if isinstance(source, pa.ChunkedArray) else source


def to_text(columns: TopicColumns) -> str:
    """Return the text of the typed columns for column topic.typed_columns. Equal columns have equal texts."""
    parts = {part.source: _as_json(definition) for part, definition in columns.parts}
    return json.dumps({"version": columns.version, "ids": columns.ids, **parts}, sort_keys=True)


def _as_json(definition: ColumnsDefinition) -> dict[str, Any]:
    previous = definition.previous and _as_json(definition.previous)
    absent = ("envelope", "sequence") if definition.envelope == "none" else ()  # as in earlier stores
    facts = {name: value for name, value in vars(definition).items() if name not in absent}
    return {**facts, "fields": json.loads(types.to_json(definition.fields)), "previous": previous}


def from_text(text: str) -> TopicColumns:
    """Return the typed columns from the text of column topic.typed_columns."""
    values = json.loads(text)
    version, ids = values.pop("version"), values.pop("ids", {})  # earlier stores have no ids
    return TopicColumns(version, **{source: _of_json(each) for source, each in values.items()}, earlier_ids=ids)


def _of_json(values: dict[str, Any]) -> ColumnsDefinition:
    previous = values["previous"]
    parts = {
        "fields": types.from_json(json.dumps(values["fields"])),
        "schemas_by_id": {int(number): text for number, text in values["schemas_by_id"].items()},
        "replaced": tuple(values["replaced"]),
        "previous": previous and _of_json(previous),
    }
    return ColumnsDefinition(**{**values, **parts})
