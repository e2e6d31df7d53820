"""Hypothesis strategies: schemas of columns."""

import pyarrow as pa
from hypothesis import strategies as st

from spark_log.log.columns.types import list_of

NAMES = st.sampled_from(["a", "b", "c", "D", "é", "x-y", "select", "1st", "42", "élan", "_", "名", "a:b$<>[]/*'"])

LEAVES = st.one_of(
    st.sampled_from(
        [pa.int64(), pa.float64(), pa.timestamp("us", "UTC"), pa.date32(), pa.bool_(), pa.binary(), pa.string()]
    ),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)


def structs(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.StructType]:
    return st.dictionaries(NAMES, types, min_size=1, max_size=4).map(lambda fields: pa.struct(list(fields.items())))


TYPES = st.recursive(
    LEAVES,
    lambda types: st.one_of(structs(types), types.map(list_of), types.map(lambda kind: pa.map_(pa.string(), kind))),
    max_leaves=8,
)
SCHEMAS = structs(TYPES)
