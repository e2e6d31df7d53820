"""Defines the interface of the decoders, from bytes to structs of columns, for drivers, Spark tasks and maintenance.

A bad record never affects another record. Its struct is null, and its reason names the field and the problem. A reason
has at most 200 characters and never contains data of the record. A null value, which is a tombstone, has a null struct
and no reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class ColumnsDefinition:
    """The columns that the keys or values of a topic are decoded to.

    `format`: json, avro or protobuf; bytes if the values are not decoded any more but the columns stay.
    `framing`: none or confluent.
    `schema`: the source text: DDL or a JSON Schema, Avro's JSON, or the text of `protobuf_schema`.
    `fields`: the columns, including those of removed fields.
    `schemas_by_id`: with framing confluent, the source text of each known schema id. json does not need it, because its
    values contain the names of their fields.
    `renamed`: maps each field of the present schema to its column, if a reset gave it a column of another name.
    `replaced`: the columns that the present schema does not fill any more, because of a reset.
    `previous`: the definition before the last reset.
    `envelope`: none, or debezium if the values are change events. The columns then have the row of the event
    (envelope.py), and `sequence` is the path of the sequence number in an event.
    """

    format: str
    framing: str
    schema: str
    fields: pa.StructType
    schemas_by_id: Mapping[int, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    previous: "ColumnsDefinition | None" = None
    envelope: str = "none"
    sequence: str = ""

    def __hash__(self) -> int:
        return hash((self.format, self.framing, self.schema))


class Decoded(NamedTuple):
    """Decoded values. `record` has a struct of the definition's fields for each value. `reasons` has the reason of each
    bad value, and null for the others. It is None if there are no bad values.
    """

    record: pa.StructArray
    reasons: pa.StringArray | None


def concatenated(parts: Sequence[Decoded], fields: pa.StructType) -> Decoded:
    """Return the decoded parts of one column as a whole."""
    if not parts:
        return Decoded(pa.array([], fields), None)
    record = pa.concat_arrays([part.record for part in parts])
    if all(part.reasons is None for part in parts):
        return Decoded(record, None)
    reasons = [pa.nulls(len(part.record), pa.string()) if part.reasons is None else part.reasons for part in parts]
    return Decoded(record, pa.concat_arrays(reasons))


class Decoder(Protocol):
    """Decodes keys or values to the columns of one definition."""

    def decode(self, values: pa.BinaryArray) -> Decoded: ...

    def most_values(self, values: pa.BinaryArray) -> float:
        """Return an upper bound of the number of fields of structs, including missing ones, that `values` decode to."""
