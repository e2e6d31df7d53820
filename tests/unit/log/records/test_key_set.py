"""Looking keys up in a set that was hashed once: the same as Python's set, whatever the hashes."""

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_log.log.records import key_set
from spark_log.log.records.key_set import KeySet

KEYS = st.one_of(st.binary(max_size=20), st.sampled_from([b"a", b"b", b"a\0", b"", b"x" * 100]))


@given(st.sets(KEYS), st.lists(st.one_of(KEYS, st.none())), st.integers(0, 3))
def test_the_same_as_a_set(members, asked, skipped):
    keys = pickle.loads(pickle.dumps(KeySet(pa.array(sorted(members), pa.binary()))))
    column = pa.array(asked, pa.binary())[skipped:]
    expected = [key is not None and key in members for key in asked[skipped:]]
    assert keys.contains(column).to_pylist() == expected
    assert len(keys) == len(members)


def test_keys_with_one_hash(monkeypatch):
    monkeypatch.setattr(key_set, "hash_values", lambda values: np.zeros(len(values), np.uint64))
    keys = KeySet(pa.array([b"a", b"b", b"c"], pa.binary()))
    asked = pa.array([b"c", b"x", b"a", None, b"b", b"x"], pa.binary())
    assert keys.contains(asked).to_pylist() == [True, False, True, False, True, False]
