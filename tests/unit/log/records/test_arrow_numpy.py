import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_log.log.records.arrow_numpy import binary_array, from_numpy, is_null, to_numpy
from spark_log.log.records.schema import TIMESTAMP

LONGS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=40), st.integers(0, 40))
def test_binary_array_equals_that_of_pyarrow(rows, start):
    found, sizes = binary_array(rows)
    found.validate(full=True)
    assert found.equals(pa.array(rows, pa.binary())) and found.null_count == rows.count(None)
    assert list(sizes) == [-1 if row is None else len(row) for row in rows]
    for array in (found.slice(start), pa.chunked_array([found.slice(start), found], pa.binary())):
        assert is_null(array).tolist() == [row is None for row in array.to_pylist()]


@given(LONGS, st.integers(0, 40))
def test_integers_are_the_same_in_numpy_and_arrow(values, start):
    longs = np.array(values, np.int64)
    for array in (from_numpy(longs), from_numpy(longs, TIMESTAMP)):
        array.validate(full=True)
        assert to_numpy(array.slice(start)).tolist() == values[start:]
        assert to_numpy(pa.chunked_array([array, array.slice(start)], array.type)).tolist() == values + values[start:]
    assert from_numpy(longs[::-1]).to_pylist() == values[::-1]
    assert to_numpy(pa.array([1, 2], pa.int32())).dtype == np.int32
