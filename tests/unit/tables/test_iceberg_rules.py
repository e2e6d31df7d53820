"""Iceberg: operations of a change, and bounds in the encoding that pyiceberg reads."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.types import DateType, DecimalType, DoubleType, IntegerType, LongType, StringType, TimestamptzType

from spark_log.tables.iceberg.metrics import encode
from spark_log.tables.iceberg.operations import operations
from spark_log.tables.publication_state import ListedFile, PublishedFile

INT64 = st.integers(-(2**63), 2**63 - 1)
KINDS = {
    "int": (pa.int32(), IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), LongType(), INT64),
    "double": (pa.float64(), DoubleType(), st.floats(allow_nan=False)),
    "date": (pa.date32(), DateType(), st.integers(-700_000, 2_900_000)),
    "timestamptz": (pa.timestamp("us", "UTC"), TimestamptzType(), INT64),
    "string": (pa.string(), StringType(), st.text()),
}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_pyiceberg_reads_each_bound(name, data):
    kind, iceberg, values = KINDS[name]
    value = data.draw(values)
    assert from_bytes(iceberg, encode(value, kind)) == value


@given(st.integers(1, 38), st.data())
def test_pyiceberg_reads_decimals(precision, data):
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    value = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    encoded = encode(value, pa.decimal128(precision, scale))
    assert from_bytes(DecimalType(precision, scale), encoded) == value
    assert len(encoded) == 1 or encoded[:1] not in (b"\x00", b"\xff") or (encoded[0] ^ encoded[1]) & 0x80


def file(base, end, count=None, partition=0):
    return PublishedFile(f"_segments/{partition}/{base}-{end}", partition, base, end, 1, count or end - base, 1, True)


def listed(base, count, partition=0):
    return ListedFile(f"_segments/{partition}/{base}", partition, base, 1, count)


SEEN = 10
"""In these tests, the table has shown the records below it."""


def names_of(add, remove):
    done = operations(add, remove, lambda each: each.end_offset <= SEEN)
    assert sorted(each.path for one in done for each in one.remove) == sorted(each.path for each in remove)
    assert sorted(each.path for one in done for each in one.add) == sorted(each.path for each in add)
    return [(each.name, len(each.add), len(each.remove)) for each in done]


def test_operations_by_the_records_that_they_change():
    assert names_of([file(10, 12), file(12, 14)], []) == [("append", 2, 0)]
    assert names_of([], [listed(0, 3)]) == [("delete", 0, 1)]
    assert names_of([file(0, 10)], [listed(0, 4), listed(4, 6)]) == [("replace", 1, 2)]
    assert names_of([file(0, 10, 7)], [listed(0, 4), listed(4, 6)]) == [("overwrite", 1, 2)]
    assert names_of([file(0, 10)], []) == [("overwrite", 1, 0)], "a replica has come back"
    assert names_of([file(0, 10), file(10, 11), file(3, 6, partition=1)], [listed(0, 10), listed(3, 3, 1)]) == [
        ("replace", 2, 2),
        ("append", 1, 0),
    ]
    change = [file(4, 8, 2), file(8, 10), file(10, 11)], [listed(0, 4), listed(4, 4), listed(8, 2)]
    assert names_of(*change) == [("delete", 0, 1), ("overwrite", 1, 1), ("replace", 1, 1), ("append", 1, 0)]


def test_a_foreign_file_without_a_base_offset_is_removed():
    foreign = ListedFile("data/x.parquet", 0, None, 1, 4)
    assert names_of([file(0, 4)], [foreign]) == [("delete", 0, 1), ("overwrite", 1, 0)]
