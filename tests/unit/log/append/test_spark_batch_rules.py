"""The rules of batches that Spark appends, against a table of cases."""

from dataclasses import replace

import pytest

from spark_log.errors import (
    CheckpointMismatchError,
)
from spark_log.log.append.spark_batch_rules import (
    SparkBatch,
    topics_without,
)

LAST = SparkBatch("stream:q", "", 7, 100, "abc", strict=True)
BEFORE = replace(LAST, version=6, fingerprint="y")
TXN = replace(LAST, strict=False)
SAME_ENTRY = replace(LAST, fingerprint="o1")
"""As it is stored."""

SPARK = [
    ("first", {}, LAST, {1, 2}),
    ("next", {1: LAST, 2: LAST}, replace(LAST, version=8, fingerprint="x"), {1, 2}),
    ("versions may be left out", {1: LAST}, replace(LAST, version=80), {1, 2}),
    ("replay", {1: LAST, 2: LAST, 3: BEFORE}, LAST, set()),
    ("replay, a topic was created since", {1: LAST}, LAST, {2}),
    ("replay, a topic came from a store that lacks the batch", {1: LAST, 2: BEFORE}, LAST, {2}),
    ("other rows", {1: LAST}, replace(LAST, fingerprint="x"), CheckpointMismatchError),
    ("other rows of the same entry", {1: SAME_ENTRY, 2: SAME_ENTRY}, replace(LAST, record_count=9, entry="o1"), set()),
    ("the same rows of another entry", {1: SAME_ENTRY}, replace(LAST, entry="o2"), CheckpointMismatchError),
    ("an entry that cannot be read any more", {1: SAME_ENTRY, 2: SAME_ENTRY}, LAST, set()),
    ("written before entries were read", {1: LAST, 2: LAST}, replace(LAST, entry="o1"), set()),
    (
        "other rows than before entries were read",
        {1: LAST},
        replace(LAST, fingerprint="x", entry="o1"),
        CheckpointMismatchError,
    ),
    ("other number of rows", {1: LAST}, replace(LAST, record_count=101), CheckpointMismatchError),
    ("other rows than in another topic", {3: LAST}, replace(LAST, fingerprint="x"), CheckpointMismatchError),
    ("older", {1: LAST}, BEFORE, CheckpointMismatchError),
    ("older than in another topic", {3: LAST}, BEFORE, CheckpointMismatchError),
    ("txnVersion again", {1: LAST, 2: LAST}, TXN, set()),
    ("txnVersion again with other rows, as in Delta", {1: LAST, 2: LAST}, replace(TXN, fingerprint="x"), set()),
    ("older txnVersion, as in Delta", {1: LAST, 2: LAST}, replace(TXN, version=3), set()),
    ("newer txnVersion", {1: LAST, 2: LAST}, replace(TXN, version=8), {1, 2}),
]


@pytest.mark.parametrize(("last", "new", "expected"), [case[1:] for case in SPARK], ids=[case[0] for case in SPARK])
def test_spark_batches(last, new, expected):
    if isinstance(expected, set):
        assert topics_without(new, last, {1, 2}) == expected
    else:
        with pytest.raises(expected, match="stream:q: batch"):
            topics_without(new, last, {1, 2})
