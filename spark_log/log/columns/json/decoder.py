"""Decodes JSON to columns, with msgspec.

A value is one JSON object of RFC 8259 in UTF-8, nested at most 200 levels deep, with at most 16,777,216 fields,
including missing ones, in the structs of its arrays and maps. A missing field is null; fields that the schema does not
have are ignored; the last of several fields with the same name counts.

    BIGINT      a whole number of 64 bits, without point and exponent
    DOUBLE      a number within the range of a double, rounded to the nearest one
    DECIMAL     a number, or one in a string, that the type holds exactly
    BOOLEAN     true, false
    STRING      a string; of any other value but null, its JSON text as it is
    BINARY      a string in base64 (RFC 4648, section 4, with padding)
    TIMESTAMP   a string in ISO 8601 with a date of the years 1 to 9999: `2026-11-22T16:50:00.123456+01:00`. T may be a
                space; without a zone it is UTC, without a time midnight; digits below microseconds are cut off
    DATE        a string such as 2026-11-22 or 2026-11-22Z
    STRUCT, ARRAY, MAP   an object, an array, an object

Each record is decoded to an object of a class that is created for the schema; msgspec checks the types while it parses.
A record that does not fit the class is decoded again field by field. This finds the reason, and accepts valid values
that the class does not, such as a number in a STRING. A record of very many keys is decoded field by field only.
"""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.column_limits import walk
from spark_log.log.columns.decoded import Decoded, concatenated
from spark_log.log.columns.expansion import MAX_VALUES, struct_width, widest_item
from spark_log.log.columns.framing import NO_FRAMING, NOT_FRAMED, unframed
from spark_log.log.columns.json.columns import Columns
from spark_log.log.columns.json.field_by_field import BadRecordError, FieldByField, check_text, most_items, needs_check
from spark_log.log.columns.json.record_classes import RecordClasses
from spark_log.log.columns.value_bytes import bytes_of, data_of, parts

_ROWS, _FIELDS = 2048, 1 << 20
"""Limits of the records, and of their fields, that exist as Python objects at the same time."""
_COMPARISONS = 1 << 24
"""Limit of the comparisons of names while one record is parsed to its class, about 0.1 s in which no other thread runs:
msgspec compares each key that is unknown, or not in the schema's order, with all fields of the class.
"""


class JsonDecoder:
    """Decodes JSON objects to a struct of the fields. Threads may share it.

    `framed` is whether objects follow Confluent's framing. Any schema id is accepted, as values name their fields.
    """

    def __init__(self, fields: pa.StructType, framed: bool = False) -> None:
        self._fields, self._framed = fields, framed
        self._rows = min(_ROWS, max(1, _FIELDS // sum(1 for _ in walk(fields))))
        self._width, self._widest = struct_width(fields), widest_item(fields)
        self._most_fields = max(kind.num_fields for _, kind, _ in walk(fields) if pa.types.is_struct(kind))
        classes = RecordClasses()
        self._parse = msgspec.json.Decoder(classes.of(fields)).decode
        self._field_by_field = FieldByField(fields, classes)
        self._columns = Columns(fields, classes)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return concatenated([self._part(part) for part in parts(values, self._rows)], self._fields)

    def most_values(self, values: pa.BinaryArray) -> float:
        return len(values) * self._width + self._most_in_items(values)

    def _most_in_items(self, values: pa.BinaryArray) -> int:
        """Return an upper bound of the number of values in the structs of arrays and maps."""
        if not self._widest:
            return 0
        data = data_of(values)
        if len(data) * self._widest <= MAX_VALUES:
            return len(data) * self._widest
        return most_items(data) * self._widest

    def _part(self, values: pa.BinaryArray) -> Decoded:
        bad = Bad(counting=self._most_in_items(values) > MAX_VALUES)
        if self._framed:
            framed, (values, ids) = values, unframed(values)
            for row in np.flatnonzero((ids == NOT_FRAMED) & framed.is_valid().to_numpy(zero_copy_only=False)).tolist():
                bad.add(row, NO_FRAMING)
        parse, plain, short = self._parse, self._is_plain(values), self._are_short(values)
        objects: list[Any] = bytes_of(values)
        for row, value in enumerate(objects):
            if value is not None:
                try:
                    if not plain:
                        check_text(value, self._widest)
                    is_parsed = short or value.count(b":") * self._most_fields <= _COMPARISONS
                    objects[row] = parse(value) if is_parsed else self._second_look(value, row, bad)
                except (ValueError, RecursionError, BadRecordError):
                    objects[row] = self._second_look(value, row, bad)
        record = self._columns.array(objects, bad)
        if not bad.reasons:
            return Decoded(record, None)
        for row in bad.reasons:
            objects[row] = None
        record = self._columns.array(objects, Bad())
        return Decoded(record, pa.array([bad.reasons.get(row) for row in range(len(objects))], pa.string()))

    def _is_plain(self, values: pa.BinaryArray) -> bool:
        """Return whether all values are UTF-8, and none can be nested too deeply or have too many fields."""
        try:
            values.cast(pa.string())
        except pa.ArrowInvalid:
            return False
        return not needs_check(values, self._widest)

    def _are_short(self, values: pa.BinaryArray) -> bool:
        """Return whether no value is so long that its keys may exceed _COMPARISONS."""
        length = pc.max(pc.binary_length(values)).as_py()
        return length is None or length * self._most_fields <= _COMPARISONS

    def _second_look(self, value: bytes, row: int, bad: Bad) -> Any:
        try:
            return self._field_by_field.record(value)
        except BadRecordError as error:
            bad.add(row, str(error))
            return None
