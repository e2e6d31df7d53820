from hypothesis import given
from hypothesis import strategies as st

from spark_log.log.partitions.lineage import UNKNOWN_EPOCH, diverging_offset
from spark_log.log.partitions.replication_rules import Truncation


def test_position_of_the_epoch_that_the_truncation_began_has_not_diverged():
    assert diverging_offset(10, 1, [Truncation(1, 5)]) is None


def test_of_several_truncations_the_lowest_later_one_counts():
    assert diverging_offset(10, 1, [Truncation(1, 2), Truncation(2, 8), Truncation(3, 6)]) == 6


def test_position_without_a_known_epoch_never_diverges():
    assert diverging_offset(10, UNKNOWN_EPOCH, [Truncation(1, 5)]) is None


@given(st.lists(st.one_of(st.none(), st.integers(0, 6)), max_size=12), st.data())
def test_where_two_lineages_part_is_found_from_any_position(steps, data):
    """A log is a list of the epochs of its records; None appends one, a number is an election that cuts there."""
    log, epoch, truncations, history = [], 0, [], [([], 0)]
    for step in steps:
        if step is None:
            log.append(epoch)
        else:
            epoch += 1
            if step < len(log):
                del log[step:]
                truncations.append(Truncation(epoch, step))
        history.append((list(log), epoch))
    seen, epoch_then = data.draw(st.sampled_from(history))
    offset = data.draw(st.integers(0, len(seen)))
    last_record = [seen[offset - 1]] if offset else []
    lived = 0  # how many of the records read are in the log still: a record is one append, known by offset and epoch
    while lived < offset and lived < len(log) and log[lived] == seen[lived]:
        lived += 1
    for known in [*last_record, epoch_then]:
        found = diverging_offset(offset, known, truncations)
        assert found == (lived if lived < offset else None)
