"""Decodes values that begin with the id of their schema, each with this schema, or all values with one schema."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.decoded import Decoded, concatenated
from spark_log.log.columns.expansion import MAX_VALUES, struct_width
from spark_log.log.columns.framing import NO_FRAMING, NOT_FRAMED, unframed
from spark_log.log.columns.value_bytes import Ints, offsets_of, parts

Read = Callable[[pa.BinaryArray, Ints, Bad], pa.StructArray]
"""Decodes the values at these rows, none of which is null, to structs of the columns. Adds rows that are bad to Bad;
their structs may have any value.
"""


class SchemaIdDecoder:
    """A decoder with one function for each schema id, or a single function for values without framing.

    `rows` is the number of values that are decoded together. `values_per_byte` is the largest number of struct fields
    within arrays and maps to which one byte can be decoded. Threads may share it.
    """

    def __init__(
        self, fields: pa.StructType, readers: Mapping[int, Read] | Read, rows: int, values_per_byte: float
    ) -> None:
        self._fields, self._rows = fields, rows
        self._width, self._values_per_byte = struct_width(fields), values_per_byte
        self._framed = isinstance(readers, Mapping)
        self._readers = readers if isinstance(readers, Mapping) else {NOT_FRAMED: readers}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return concatenated([self._part(part) for part in parts(values, self._rows)], self._fields)

    def most_values(self, values: pa.BinaryArray) -> float:
        return len(values) * self._width + self._most_in_items(values)

    def _most_in_items(self, values: pa.BinaryArray) -> float:
        offsets = offsets_of(values)
        return int(offsets[-1] - offsets[0]) * self._values_per_byte

    def _part(self, values: pa.BinaryArray) -> Decoded:
        bad = Bad(counting=self._most_in_items(values) > MAX_VALUES)
        record = self._record(values, bad)
        if not bad.reasons:
            return Decoded(record, None)
        good = np.ones(len(values), np.bool_)
        good[list(bad.reasons)] = False
        record = self._record(pc.if_else(pa.array(good), values, None), Bad())
        return Decoded(record, pa.array([bad.reasons.get(row) for row in range(len(values))], pa.string()))

    def _record(self, values: pa.BinaryArray, bad: Bad) -> pa.StructArray:
        present = values.is_valid().to_numpy(zero_copy_only=False)
        ids = np.full(len(values), NOT_FRAMED, np.int64)
        if self._framed:
            values, ids = unframed(values)
        records, order, count = [pa.array([], self._fields)], np.full(len(values), -1, np.int64), 0
        for number in np.unique(ids[present]).tolist():
            rows = np.flatnonzero(present & (ids == number))
            if number not in self._readers:
                for row in rows.tolist():
                    bad.add(row, NO_FRAMING if number == NOT_FRAMED else f"unknown schema id {number}")
                continue
            records.append(self._readers[number](values, rows, bad))
            order[rows] = np.arange(count, count + len(rows))
            count += len(rows)
        return taken(pa.concat_arrays(records), order)


def taken(array: pa.Array, order: Ints) -> pa.Array:
    """Return the elements of `array` at these positions, null for -1."""
    absent = order < 0
    if not absent.any() and len(order) == len(array) and (order == np.arange(len(order))).all():
        return array
    return array.take(pa.array(order, mask=absent))
