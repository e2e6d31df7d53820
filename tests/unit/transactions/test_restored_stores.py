"""The end of a transaction over several stores after one of them was restored to an earlier time."""

import pytest

from spark_log.errors import ProducerFencedError
from spark_log.ids import StoreId
from spark_log.transactions import part_rules, rules
from spark_log.transactions.part_rules import Part, PartState, Resolution
from spark_log.transactions.rules import ABORTED, COMMITTED, EMPTY, ONGOING, Parts, ProducerRef, Transaction

EAST, WEST = StoreId(1), StoreId(2)
PREPARED = Parts(5, frozenset({WEST}))


def home(state, number=0, *stores, pending=0):
    return Transaction(7, 3, state, pending, parts=Parts(number, frozenset(stores)))


@pytest.mark.parametrize(
    "before",
    [
        home(EMPTY),
        home(COMMITTED, 4),
        home(ABORTED, 4),
        home(ONGOING, 4, EAST),
        home(ONGOING, 5, EAST),  # from before the other store was joined
        home(ONGOING, 5, EAST, WEST),
    ],
)
def test_a_restored_home_store_learns_a_commit(before):
    after = rules.learn_commit(before, PREPARED)
    assert (after.state, after.parts) == (COMMITTED, PREPARED)
    with pytest.raises(ProducerFencedError):  # its batches in the home store are lost
        rules.commit(after, ProducerRef(7, before.epoch), 0)


@pytest.mark.parametrize(
    "before",
    [
        home(COMMITTED, 5),
        home(COMMITTED, 5, WEST),
        home(ABORTED, 5),
        home(ONGOING, 5),  # of home only, after the one with parts
        home(ONGOING, 6, WEST),
        home(COMMITTED, 6),
    ],
    ids=str,
)
def test_a_home_store_that_knows_better_learns_nothing(before):
    assert rules.learn_commit(before, PREPARED) is before


@pytest.mark.parametrize(
    ("transaction", "state", "resolution"),
    [
        (home(COMMITTED, 5, EAST), PartState.PREPARED, Resolution.ROLL_FORWARD),
        (home(COMMITTED, 5), PartState.PREPARED, Resolution.ROLL_FORWARD),  # restored after it had followed
        (home(COMMITTED, 5), PartState.OPEN, Resolution.ABORT),  # restored to a time before it was prepared
        (home(COMMITTED, 6), PartState.PREPARED, Resolution.ABORT),
        (home(ABORTED, 5), PartState.PREPARED, Resolution.ABORT),
        (home(ONGOING, 5, EAST), PartState.PREPARED, Resolution.WAIT),
        (None, PartState.PREPARED, Resolution.ABORT),
    ],
)
def test_the_end_of_a_part(transaction, state, resolution):
    assert part_rules.resolve(transaction, EAST, Part(7, 5, state, 1)) is resolution
