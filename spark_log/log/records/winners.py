"""Decides which record of a key is its current one. Pure.

The rule is a fold in the order of the offsets: each record replaces the earlier one of its key.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.log.records.arrow_numpy import is_null, to_numpy


def current_records(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Return the positions of the current records of all keys, ascending. `keys` are those of records in the order of
    their offsets. Records without a key are left out.
    """
    encoded = keys.dictionary_encode()
    with_key = np.flatnonzero(~is_null(encoded.indices))
    last = np.empty(len(encoded.dictionary), np.int64)
    last[to_numpy(encoded.indices.drop_null())] = with_key  # of several assignments to one place, the last one stays
    return np.sort(last)
