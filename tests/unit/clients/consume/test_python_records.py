"""ConsumerRecords are equal to the Arrow rows, for slices of arrays too."""

from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord
from kafka.serializer import DefaultSerializer

from spark_log.clients.consume.python_records import Deserializers, python_records
from spark_log.log.records.schema import read_schema

SCHEMA = read_schema(include_headers=True)

rows = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=4),
        "value": st.none() | st.binary(max_size=9),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}),
            min_size=1,
            max_size=3,
        ),
        "timestamp": st.integers(0, 2**40).map(lambda ms: ms * 1000),
    }
)


def batch_of(given):
    columns = {
        "key": pa.array([row["key"] for row in given], pa.binary()),
        "value": pa.array([row["value"] for row in given], pa.binary()),
        "topic": pa.array(["t"] * len(given)),
        "partition": pa.array([3] * len(given), pa.int32()),
        "offset": pa.array(range(10, 10 + len(given)), pa.int64()),
        "timestamp": pa.array([row["timestamp"] for row in given], pa.int64()).cast(SCHEMA.field("timestamp").type),
        "timestampType": pa.array([1] * len(given), pa.int32()),
        "headers": pa.array([row["headers"] for row in given], SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)


def size(value):
    return -1 if value is None else len(value)


def expected(offset, row):
    headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
    header_size = sum(len(key.encode()) + max(size(value), 0) for key, value in headers) if headers else -1
    key, value = row["key"], row["value"]
    return ConsumerRecord(
        "t", 3, -1, offset, row["timestamp"] // 1000, 1, key, value, headers, None, size(key), size(value), header_size
    )


@given(given_rows=st.lists(rows, max_size=20), data=st.data())
def test_records_equal_the_rows(given_rows, data):
    first = data.draw(st.integers(0, len(given_rows)))
    count = data.draw(st.integers(0, len(given_rows) - first))
    records, error = python_records(batch_of(given_rows).slice(first, count), "t", 3, Deserializers())
    assert error is None
    assert records == [expected(10 + n, given_rows[n]) for n in range(first, first + count)]
    assert all(type(record) is ConsumerRecord and type(record.headers) is list for record in records)


ROWS = [{"key": b"k", "value": b"%d" % n, "headers": None, "timestamp": 0} for n in range(5)]


def test_deserializers_may_be_functions_or_objects():
    records, error = python_records(batch_of(ROWS), "t", 3, Deserializers(DefaultSerializer(), int))
    assert error is None
    assert [(record.key, record.value) for record in records] == [("k", n) for n in range(5)]
    assert {record.serialized_value_size for record in records} == {1}


def test_records_before_a_failed_deserialization_are_returned_with_its_error():
    bad = [*ROWS[:3], {**ROWS[3], "value": b"x"}, ROWS[4]]
    records, error = python_records(batch_of(bad), "t", 3, Deserializers(None, int))
    assert [record.offset for record in records] == [10, 11, 12]
    assert isinstance(error, ValueError)


class Ends(DefaultSerializer):
    def deserialize(self, topic, headers, data):
        return next(each for each in [data] if each != b"3")


class EndsWithoutHeaders:
    def deserialize(self, topic, data):
        return next(each for each in [data] if each != b"3")


@pytest.mark.parametrize("deserializer", [Ends(), EndsWithoutHeaders(), partial(EndsWithoutHeaders().deserialize, "")])
def test_a_stop_iteration_of_a_deserializer_is_an_error(deserializer):
    records, error = python_records(batch_of(ROWS), "t", 3, Deserializers(None, deserializer))
    assert [record.offset for record in records] == [10, 11, 12]
    assert isinstance(error, StopIteration)


@pytest.mark.parametrize(("key", "value", "named"), [(b"x", b"y", "x"), (b"1", b"y", "y")])
def test_the_error_is_that_of_the_first_record_that_cannot_be_deserialized(key, value, named):
    bad = [{**ROWS[0], "key": b"0"}, {**ROWS[1], "key": key}, {**ROWS[2], "key": b"2", "value": value}]
    records, error = python_records(batch_of(bad), "t", 3, Deserializers(int, int))
    assert len(records) == (1 if named == "x" else 2)
    assert f"b'{named}'" in str(error)
