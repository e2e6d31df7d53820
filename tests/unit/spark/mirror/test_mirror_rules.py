"""The offsets that a mirror's target lacks, and the offsets that its groups may commit."""

import pytest

from spark_log.errors import DataLossError, OffsetOutOfRangeError
from spark_log.groups.committed_offsets import Commit
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.segments.slices import Positions
from spark_log.spark.mirror.mirror_groups import advanced
from spark_log.spark.mirror.mirror_positions import next_range

SOURCE = Positions(100, 200)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ((0, 100), (100, 200)),
        ((0, 150), (150, 200)),
        ((150, 150), (150, 200)),  # retention has emptied it
        ((0, 200), (200, 200)),
    ],
)
def test_the_target_lacks_the_offsets_after_its_end(target, expected):
    assert next_range("t-0", SOURCE, OffsetRange(*target), begun=True, allow_data_loss=False) == OffsetRange(*expected)


def test_an_empty_target_begins_at_the_log_start_of_the_source():
    for allowed in (False, True):
        found = next_range("t-0", SOURCE, OffsetRange(0, 0), begun=False, allow_data_loss=allowed)
        assert found == OffsetRange(100, 200)


def test_a_target_that_is_ahead_and_a_gap_are_errors():
    for target in ((0, 201), (201, 201)):
        with pytest.raises(OffsetOutOfRangeError, match=r"t-0: the target's log ends at 201, beyond .* watermark 200"):
            next_range("t-0", SOURCE, OffsetRange(*target), begun=True, allow_data_loss=False)
        ahead = next_range("t-0", SOURCE, OffsetRange(*target), begun=True, ahead=True, allow_data_loss=False)
        assert ahead == OffsetRange(201, 201)
    for target in ((0, 99), (99, 99)):  # also if retention has emptied it
        with pytest.raises(DataLossError, match=r"t-0: the records with the offsets \[99, 100\) are gone"):
            next_range("t-0", SOURCE, OffsetRange(*target), begun=True, allow_data_loss=False)
        assert next_range("t-0", SOURCE, OffsetRange(*target), begun=True, allow_data_loss=True) == OffsetRange(99, 200)


def test_groups_move_forward_up_to_the_end_of_the_target():
    a, b, c, d = (TopicPartition("t", number) for number in range(4))
    source = {a: Commit(5, "text"), b: Commit(5), c: Commit(50), d: Commit(5)}
    ends = {a: 10, b: 10, c: 10, d: 10}
    target = {b: Commit(6), d: Commit(4)}
    assert advanced(source, target, ends) == {a: Commit(5, "text"), c: Commit(10), d: Commit(5)}
    assert advanced(source, advanced(source, target, ends) | {b: Commit(6)}, ends) == {}
    assert advanced(source, target, {}) == {}
