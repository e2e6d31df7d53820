"""Converts the stored columns of files and blobs to the columns that readers see."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.errors import InvalidOptionError
from spark_log.log.columns.key_and_value import RECORDS, TYPED
from spark_log.log.records.arrow_numpy import from_numpy
from spark_log.log.records.schema import TimestampType, leaf_paths, read_schema, typed_fields

STORED = ("timestamp", "key", "value", "headers", *TYPED)
"""Columns of the read schema that are stored under the same name."""

BATCH_RECORDS = 65_536


@lru_cache(64)
def _is_read_schema(schema: pa.Schema) -> bool:
    names = schema.names
    return bool(schema.equals(read_schema("headers" in names, names, typed_fields(schema))))


@dataclass
class ReadShape:
    """Builds the batches that readers of one segment see. `schema` comes from `read_schema`, else InvalidOptionError is
    raised.
    """

    topic: str
    partition: int
    base_offset: int
    timestamp_type: TimestampType
    schema: pa.Schema
    _constants: dict[str, pa.Array] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not _is_read_schema(self.schema):
            raise InvalidOptionError(f"schema: expected a result of read_schema, got {self.schema}")

    @property
    def stored_columns(self) -> list[str]:
        """Stored columns that the schema needs, besides offset_delta."""
        return [name for name in self.schema.names if name in STORED]

    @property
    def parquet_columns(self) -> list[str]:
        """`stored_columns` as Parquet paths. Of a typed column only the leaves that the schema has are included."""
        plain = [name for name in self.stored_columns if name not in RECORDS]
        records = [self.schema.field(name) for name in self.stored_columns if name in RECORDS]
        return [*plain, *(leaf for record in records for leaf in leaf_paths(record))]

    def batch(
        self, stored: pa.RecordBatch, deltas: int | npt.NDArray[np.int32], start: int, stop: int
    ) -> pa.RecordBatch:
        """Return rows start <= row < stop of `stored`, which has `stored_columns`, in the read schema.

        `deltas` is the offset delta of row 0 if the deltas have no gaps, else an array with the delta of each row. No
        bytes of keys or values are copied.
        """
        rows = stop - start
        columns = []
        for name in self.schema.names:
            if name in STORED:
                columns.append(stored.column(name).slice(start, rows))
            elif name == "offset":
                columns.append(from_numpy(self._offsets(deltas, start, stop)))
            else:
                columns.append(self._constant(name, rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _offsets(self, deltas: int | npt.NDArray[np.int32], start: int, stop: int) -> npt.NDArray[np.int64]:
        if isinstance(deltas, int):
            first = self.base_offset + deltas
            return np.arange(first + start, first + stop, dtype=np.int64)
        return self.base_offset + deltas[start:stop].astype(np.int64)

    def _constant(self, name: str, rows: int) -> pa.Array:
        values: dict[str, str | int] = {
            "topic": self.topic,
            "partition": self.partition,
            "timestampType": int(self.timestamp_type),
        }
        value, type_ = values[name], self.schema.field(name).type
        if rows <= _FEW_ROWS:
            return _repeated_few(value, type_, rows)
        column = self._constants.get(name)
        if column is None or len(column) < rows:
            column = self._constants[name] = _repeated(value, type_, rows)
        return column.slice(0, rows)


def _repeated(value: str | int, type_: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, type_), rows)


_FEW_ROWS = 16
_repeated_few = lru_cache(1_024)(_repeated)
"""Without this cache such columns would take most of the time to read a blob of few records."""
