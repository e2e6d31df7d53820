"""The interface of the decoders: bytes to a struct of columns, the same for drivers, Spark tasks and maintenance.

One bad record never affects another: its struct is null and its reason names the field and the problem. A reason has at
most 200 characters and never contains data of the record. A null value, which is a tombstone, has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class ColumnsDefinition:
    """The columns that the keys or values of a topic are decoded to.

    `format`: json, avro or protobuf.
    `framing`: none or confluent.
    `schema`: the source text: DDL or a JSON Schema, Avro's JSON, or that of `protobuf_schema`.
    `fields`: the columns, those of removed fields included.
    `schemas_by_id`: with framing confluent, the source text of each schema id that is known. json does not need it: its
    values have the names of their fields.
    `renamed`: the column of each field of the present schema that has a column of another name, since a reset.
    `replaced`: the columns that the present schema does not fill, since a reset.
    `previous`: the definition before the last reset.
    """

    format: str
    framing: str
    schema: str
    fields: pa.StructType
    schemas_by_id: Mapping[int, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    previous: "ColumnsDefinition | None" = None

    def __hash__(self) -> int:
        return hash((self.format, self.framing, self.schema))


class Decoded(NamedTuple):
    """`record`: a struct of the definition's fields for each value. `reasons`: why a value is bad, null for the others;
    None if there are no bad values.
    """

    record: pa.StructArray
    reasons: pa.StringArray | None


def concatenated(parts: Sequence[Decoded], fields: pa.StructType) -> Decoded:
    """The parts of one column, decoded one after the other."""
    if not parts:
        return Decoded(pa.array([], fields), None)
    record = pa.concat_arrays([part.record for part in parts])
    if all(part.reasons is None for part in parts):
        return Decoded(record, None)
    reasons = [pa.nulls(len(part.record), pa.string()) if part.reasons is None else part.reasons for part in parts]
    return Decoded(record, pa.concat_arrays(reasons))


class Decoder(Protocol):
    def decode(self, values: pa.BinaryArray) -> Decoded: ...

    def most_values(self, values: pa.BinaryArray) -> float:
        """At most how many values of structs these are decoded to, those that are missing included."""
