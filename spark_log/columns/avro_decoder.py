"""Avro to columns: one field of all records at a time, with NumPy.

A value has exactly the bytes of one record of its schema. Bad: bytes that are missing or left over, text that is not
UTF-8, an index of an enum or union that does not exist, a boolean other than 0 and 1, a number of too many bits, a time
outside of the years 1 to 9999, a decimal with too many digits. Of map entries with the same key the last one counts.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.columns.avro_cursor import Cursor, taken
from spark_log.columns.avro_readers import record_reader
from spark_log.columns.avro_schema import avro_type
from spark_log.columns.decoding import Decoded, concatenated
from spark_log.columns.framing import NO_FRAMING, NOT_FRAMED, unframed
from spark_log.columns.python_columns import Bad
from spark_log.columns.value_bytes import parts

_ROWS = 8192


class AvroDecoder:
    """Decodes Avro records to a struct of the fields. Threads may share it.

    `schemas_by_id`: None for values without framing; otherwise the schemas of the ids that the values begin with.
    """

    def __init__(self, fields: pa.StructType, schema: str, schemas_by_id: Mapping[int, str] | None) -> None:
        self._fields = fields
        self._framed = schemas_by_id is not None
        schemas = {NOT_FRAMED: schema} if schemas_by_id is None else schemas_by_id
        self._readers = {number: record_reader(avro_type(text), fields) for number, text in schemas.items()}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See Decoder."""
        return concatenated([self._part(part) for part in parts(values, _ROWS)], self._fields)

    def _part(self, values: pa.BinaryArray) -> Decoded:
        bad = Bad()
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
            cursor = Cursor.of(values, rows, bad)
            records.append(self._readers[number].read(cursor))
            cursor.fail(cursor.pos != cursor.end, "bytes left over after the Avro record")
            order[rows] = np.arange(count, count + len(rows))
            count += len(rows)
        return taken(pa.concat_arrays(records), order)
