"""The end of the last transaction of a producer that starts."""

import pytest

from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.clients.produce.producer_transaction import ProducerTransaction
from spark_log.errors import TransactionCommitPendingError
from spark_log.transactions import transaction_parts


@pytest.mark.parametrize(("lost", "fails"), [(1, False), (2, False), (9, True)])
def test_a_transaction_is_completed_again_if_a_crash_of_home_loses_the_note_of_it(monkeypatch, lost, fails):
    notes = [TransactionCommitPendingError("not readable yet")] * (lost + 1)
    monkeypatch.setattr(transaction_parts, "complete_last", lambda *_, timeout_ms: notes.pop())

    def call():
        if notes:
            raise notes[0]

    transaction = ProducerTransaction(None, ProducerSettings(transactional_id="id"))
    if fails:
        with pytest.raises(TransactionCommitPendingError):
            transaction._after_the_last_one(None, call)
    else:
        transaction._after_the_last_one(None, call)
        assert not notes
