"""A set of keys, hashed once, for looking up many columns of keys."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.records.fingerprint import hash_values


class KeySet:
    """Distinct keys (binary, without null). Picklable. Needs about 24 bytes per key in addition to its bytes."""

    def __init__(self, keys: pa.Array) -> None:
        hashes = hash_values(keys)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._keys = keys.take(pa.array(order))

    def __len__(self) -> int:
        return len(self._keys)

    def contains(self, keys: pa.Array) -> pa.BooleanArray:
        """Which of these keys are in the set; null is not. No nulls in the answer."""
        is_contained = np.zeros(len(keys), np.bool_)
        if len(keys) and len(self):
            hashes = hash_values(keys)
            order = np.argsort(hashes)  # looked up in order they meet the same cache lines: seven times faster
            hashes = hashes[order]
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
            hits = np.flatnonzero(self._hashes[places] == hashes)
            if len(hits):
                candidates = keys.take(pa.array(order[hits]))
                equal = pc.fill_null(pc.equal(candidates, self._keys.take(pa.array(places[hits]))), False)
                if not pc.all(equal).as_py():  # of several keys with one hash, `places` is the first
                    equal = pc.is_in(candidates, value_set=self._keys)
                is_contained[order[hits]] = np.asarray(equal)
        return pa.array(is_contained)
