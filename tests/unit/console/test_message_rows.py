"""Records as rows of Python objects, without typed columns that are large."""

import pyarrow as pa
import pytest

from spark_log.console.messages.message import rows_of
from spark_log.log.records.schema import read_schema

STRUCT = pa.struct([("flags", pa.list_(pa.bool_())), ("names", pa.map_(pa.string(), pa.struct([("n", pa.int64())])))])
SCHEMA = read_schema(
    include_headers=True,
    typed=pa.struct(
        [("key_record_error", pa.string()), ("key_record", STRUCT), ("record_error", pa.string()), ("record", STRUCT)]
    ),
)


def batch(*records, keys=None):
    """Records with these typed columns; `keys`: those of the keys, else null."""
    columns = {
        "value": pa.array([b"{}"] * len(records)),
        "timestamp": pa.array([2_000_000] * len(records), SCHEMA.field("timestamp").type),
        "record": pa.array(records, STRUCT),
        "key_record": pa.array(keys or [None] * len(records), STRUCT),
    }
    arrays = [columns.get(each.name, pa.nulls(len(records), each.type)) for each in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


FEW = {"flags": [True, None], "names": [("a", {"n": 1})]}


@pytest.mark.parametrize(
    "many", [{"flags": [None] * 2000}, {"names": [(f"{number}", {}) for number in range(500)]}], ids=["array", "map"]
)
def test_typed_columns_that_are_too_large_are_null_and_say_so(many):
    found = [*rows_of(batch(FEW, many, FEW, None, keys=[None, FEW, many, FEW]), 10_000)]
    assert [row["record"] for row in found] == [FEW, None, FEW, None]
    assert [row["key_record"] for row in found] == [None, FEW, None, FEW]
    assert [row["record_error"] is None for row in found] == [True, False, True, True]
    assert found[2]["key_record_error"] == "too large to show: the columns have more than 10,000 bytes"
    assert {row["timestamp"] for row in found} == {2000} and {row["value"] for row in found} == {b"{}"}
