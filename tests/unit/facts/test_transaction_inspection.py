"""The rule for hanging transactions."""

import pytest

from spark_log.facts.transactions import TransactionListing, is_hanging
from spark_log.transactions.rules import COMMITTED, ONGOING

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("open_ms", "overdue", "hanging"),
    [
        (None, False, False),
        (MINUTE_MS, False, False),
        (MINUTE_MS, True, True),
        (20 * MINUTE_MS - 1, False, False),
        (20 * MINUTE_MS, False, True),
    ],
)
def test_transaction_past_its_timeout_hangs(open_ms: int | None, overdue: bool, hanging: bool) -> None:
    state = COMMITTED if open_ms is None else ONGOING
    transaction = TransactionListing("t", 1, 0, state, MINUTE_MS, 0, open_ms, overdue, 1)
    assert is_hanging(transaction, 15 * MINUTE_MS) is hanging
    if open_ms is None:
        assert not is_hanging(transaction, -60 * MINUTE_MS), "a finished transaction never hangs"
