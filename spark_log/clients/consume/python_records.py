"""Converts Arrow batches to kafka-python's ConsumerRecords: column by column, then one C loop makes the tuples."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord

from spark_log.clients.client_settings import takes_headers
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND


class Deserializers(NamedTuple):
    """The client's deserializers: None, a function of the bytes, or an object with kafka-python's `deserialize`."""

    key: Any = None
    value: Any = None


class Converted(NamedTuple):
    """The records before the first one that could not be deserialized, and the error of that one."""

    records: list[ConsumerRecord]
    error: Exception | None


def python_records(
    batch: pa.RecordBatch,
    topic: str,
    partition: int,
    deserializers: Deserializers,
    leader_epoch: int = -1,
    record_class: type[Any] = ConsumerRecord,
) -> Converted:
    """Convert the rows of `batch` (one partition, columns of `read_schema(include_headers=True)`), in order, up to the
    first one that cannot be deserialized.
    """
    keys, key_sizes = _bytes_and_sizes(batch.column("key"))
    values, value_sizes = _bytes_and_sizes(batch.column("value"))
    headers, header_sizes = _headers(batch.column("headers"))
    error: Exception | None = None
    for name, column in (("key", keys), ("value", values)):
        deserializer = getattr(deserializers, name)
        if deserializer is not None:
            made, failed = _deserialized(deserializer, topic, headers, column)
            column[:] = made  # a shorter column ends the records below
            if failed is not None and (error is None or len(values) < len(keys)):
                error = failed
    records = list(
        map(
            partial(tuple.__new__, record_class),  # without Python code; `_make` is a Python function
            zip(
                repeat(topic),
                repeat(partition),
                repeat(leader_epoch),
                batch.column("offset").to_numpy().tolist(),
                _milliseconds(batch.column("timestamp")),
                repeat(batch.column("timestampType")[0].as_py() if batch.num_rows else 0),
                keys,
                values,
                headers,
                repeat(None),
                key_sizes,
                value_sizes,
                header_sizes,
                strict=False,
            ),
        )
    )
    return Converted(records, error)


def _deserialized(
    deserializer: Any, topic: str, headers: Sequence[Any], column: Sequence[bytes | None]
) -> tuple[list[Any], Exception | None]:
    """Return the values before the first one that cannot be deserialized, and the error of that one."""
    of_object = getattr(deserializer, "deserialize", None)
    made: list[Any] = []
    try:
        # loops, since `map` would take a StopIteration of the function for the end of the column
        if of_object is None:
            for data in column:
                made.append(deserializer(data))
        elif takes_headers(of_object):
            for of_record, data in zip(headers, column, strict=True):
                made.append(of_object(topic, of_record, data))
        else:
            for data in column:
                made.append(of_object(topic, data))
    except Exception as error:  # a user's function may raise any error: it is raised again when its record is due
        return made, error
    return made, None


def _bytes_and_sizes(column: pa.Array) -> tuple[list[Any], Any]:
    """Return the values as bytes or None, and the serialized size of each, -1 for None."""
    if column.null_count == len(column):
        return [None] * len(column), repeat(-1)
    lengths = np.diff(_offsets(column))
    if column.null_count:
        lengths[np.asarray(column.is_null())] = -1
    # pyarrow makes the bytes objects of an object array four times as fast as those of a list
    return column.to_numpy(zero_copy_only=False).tolist(), lengths.tolist()


def _headers(column: pa.Array) -> tuple[list[list[tuple[str, bytes | None]]], Any]:
    """Return a list of (name, value) for each record, and its size in bytes, which is -1 for an empty list."""
    if column.null_count == len(column):
        return [[] for _ in range(len(column))], repeat(-1)
    bounds = _offsets(column).tolist()
    first, last = bounds[0], bounds[-1]
    items = column.values.slice(first, last - first)
    names, values = items.field("key"), items.field("value")
    pairs = list(zip(names.to_pylist(), values.to_numpy(zero_copy_only=False).tolist(), strict=True))
    sizes = np.zeros(len(pairs) + 1, np.int64)
    sizes[1:] = np.cumsum(_lengths(names) + _lengths(values))
    rows = [(begin - first, end - first) for begin, end in pairwise(bounds)]
    if column.null_count:  # Arrow allows items behind a null
        rows = [(0, 0) if null else row for null, row in zip(column.is_null().to_pylist(), rows, strict=True)]
    total = sizes.tolist()
    return (
        [pairs[begin:end] for begin, end in rows],
        [total[end] - total[begin] if end > begin else -1 for begin, end in rows],
    )


def _milliseconds(column: pa.Array) -> list[int]:
    micros = column.view(pa.int64()).to_numpy(zero_copy_only=False)
    milliseconds: list[int] = (micros // MICROSECONDS_PER_MILLISECOND).tolist()
    return milliseconds


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = np.diff(_offsets(column)).astype(np.int64)
    if column.null_count:
        lengths[np.asarray(column.is_null())] = 0
    return lengths


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the start of each value (or list) in the child data, and the end of the last one."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
