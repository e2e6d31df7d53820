"""Finds the current record of each key. Pure.

The rule goes through the records in the order of offsets: each record replaces the earlier one of its key, unless both
have a sequence and that of the later record is smaller.
"""

import os
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.records.arrow_numpy import is_null, to_numpy

Mask = npt.NDArray[np.bool_]
_FIRST = np.iinfo(np.int64).min
_KEY_BYTES = 64
_SECRET = os.urandom(32)


def short_keys(keys: pa.Array) -> pa.Array:
    """Return the keys (large_binary), with digests in place of keys of more than 64 bytes. In this process equal keys
    stay equal, and different keys stay different.

    So the memory for keys depends only on their number: a small file may have long keys that compress well. The digest
    is keyed, because a client could otherwise write a short key that equals the digest of a long one.
    """
    is_long = pc.fill_null(pc.greater(pc.binary_length(keys), _KEY_BYTES), False)
    if not pc.any(is_long).as_py():
        return keys
    digests = [blake2b(key.as_buffer(), digest_size=32, key=_SECRET).digest() for key in keys.filter(is_long)]
    return pc.replace_with_mask(keys, is_long, pa.array(digests, keys.type))


def current_records(keys: pa.Array, sequences: pa.Array | None = None) -> npt.NDArray[np.int64]:
    """Return the positions of the current records of all keys, ascending. `keys` and `sequences` (int64) are those of
    records in the order of offsets. Records without a key are left out.
    """
    encoded = keys.dictionary_encode()
    with_key = np.flatnonzero(~is_null(encoded.indices))
    numbers = to_numpy(encoded.indices.drop_null())
    places = np.arange(len(numbers))
    if sequences is not None:
        alone = is_null(sequences)[with_key]
        values = to_numpy(sequences.fill_null(_FIRST))[with_key]
        # records before a key's last one without a sequence do not count
        since = np.zeros(len(encoded.dictionary), np.int64)
        since[numbers[alone]] = places[alone]
        places = places[places >= since[numbers]]
        places = places[np.argsort(values[places], kind="stable")]
    last = np.empty(len(encoded.dictionary), np.int64)
    last[numbers[places]] = with_key[places]  # the last of several assignments to one place stays
    return np.sort(last)
