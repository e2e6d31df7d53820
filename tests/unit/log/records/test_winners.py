"""The current record of each key, against a fold over the records one by one."""

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from spark_log.log.records.winners import current_records, short_keys

RECORDS = st.lists(
    st.tuples(st.sampled_from([None, b"", b"a", b"b"]), st.sampled_from([None, -(2**63), -1, 0, 1, 2**63 - 1])),
    max_size=12,
)


@given(RECORDS, st.booleans())
def test_current_records_are_those_of_a_fold(records, by_sequence):
    current = {}
    for place, (key, sequence) in enumerate(records):
        before = records[current[key]][1] if key in current else None
        older = by_sequence and before is not None and sequence is not None and sequence < before
        if key is not None and not older:
            current[key] = place
    keys = pa.array([key for key, _ in records], pa.large_binary())
    sequences = pa.array([sequence for _, sequence in records], pa.int64()) if by_sequence else None
    assert current_records(keys, sequences).tolist() == sorted(current.values())


def test_long_keys_are_short_and_equal_only_to_themselves():
    zeros = [b"%d" % number + b"\0" * 500_000 for number in range(20)]
    keys = [None, b"", b"a" * 64, *zeros, b"a" * 65, *zeros]
    short = short_keys(pa.array(keys, pa.large_binary()))
    assert short.to_pylist()[:3] == keys[:3] and short.type == pa.large_binary()
    assert short.nbytes < 100 * len(keys)
    assert short.dictionary_encode().indices.to_pylist() == pa.array(keys).dictionary_encode().indices.to_pylist()
    assert short_keys(short).equals(short)
    assert short_keys(pa.array([], pa.large_binary())).to_pylist() == []
