"""The records that an erase deletes: the rule against plain Python."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_log.log.records.key_set import KeySet
from spark_log.maintenance.erase.key_matches import keep_others, to_erase
from tests.support.records import keyed

KEYS = st.sampled_from([b"a", b"ab", b"", b"\0", None])


@given(
    st.lists(st.tuples(KEYS, st.integers(1, 3))), st.sets(KEYS.filter(lambda key: key is not None)), st.integers(0, 30)
)
def test_records_of_the_keys_below_the_end_are_erased(rows, erased, end):
    offsets, at = [], 0
    for _, step in rows:  # gaps, as after compaction
        at += step
        offsets.append(at)
    keys = [key for key, _ in rows]
    goes = [key in erased and offset < end for key, offset in zip(keys, offsets, strict=True)]
    erased_keys = KeySet(pa.array(sorted(erased), pa.binary()))
    found = to_erase(pa.array(offsets, pa.int64()), pa.array(keys, pa.binary()), erased_keys, end)
    assert found.to_pylist() == goes
    stays = keep_others(erased_keys, end)(pa.array(offsets, pa.int64()), keyed([(key, None) for key in keys]))
    assert stays.to_pylist() == [not each for each in goes]
