"""Pages `/transactions` and `/transactions/{transactional_id}`: open and hanging transactions, and what they wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from spark_log.console.listing import Listing, listing
from spark_log.console.routes import Call, View
from spark_log.transactions.rules import TransactionState
from spark_log.transactions.transaction_inspection import (
    PendingRecords,
    TransactionDescription,
    TransactionListing,
    describe_open_transactions,
    describe_transactions,
    is_hanging,
    list_transactions,
)


@dataclass(frozen=True)
class TransactionRow:
    """`open_ms`: time since it began; None: it is not open. `pending`: what an open one wrote, of the topics that the
    user sees; `records`, `bytes`: of these.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    state: str
    began_ms: int | None
    open_ms: int | None
    timeout_ms: int
    hanging: bool
    batches: int
    records: int
    bytes: int
    pending: Sequence[PendingRecords]


@dataclass(frozen=True)
class Transactions:
    """`state`: that was asked for; empty: all."""

    open: int
    hanging: int
    state: str
    states: Sequence[str]
    listing: Listing[TransactionRow]


_COLUMNS = tuple(field.name for field in fields(TransactionRow) if field.name != "pending")


def _facts(call: Call) -> Transactions:
    store = call.cluster.store
    state = call.query.get("state", "")
    described = {each.transaction.transactional_id: each for each in describe_open_transactions(store)}
    rows = [
        _row(call, described.get(each.transactional_id, TransactionDescription(each, ())))
        for each in list_transactions(store, [state] if state else ())
    ]
    found = listing(
        rows,
        call.query,
        columns=_COLUMNS,
        sort="-open_ms",
        name=lambda row: row.transactional_id,
        first=lambda row: row.hanging,
    )
    hanging = sum(_is_hanging(call, each.transaction) for each in described.values())
    return Transactions(len(described), hanging, state, [str(each.value) for each in TransactionState], found)


def _row(call: Call, described: TransactionDescription) -> TransactionRow:
    transaction = described.transaction
    pending = [each for each in described.pending if call.sees(each.topic)]
    return TransactionRow(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.number,
        str(transaction.state.value),
        transaction.began_ms,
        transaction.open_ms,
        transaction.timeout_ms,
        _is_hanging(call, transaction),
        transaction.batches,
        sum(each.records for each in pending),
        sum(each.bytes for each in pending),
        pending,
    )


def _is_hanging(call: Call, transaction: TransactionListing) -> bool:
    return is_hanging(transaction, call.cluster.store.settings.transaction_max_timeout_ms)


def _transaction(call: Call) -> TransactionRow:
    [described] = describe_transactions(call.cluster.store, [call.path["transactional_id"]])
    return _row(call, described)


VIEWS = (
    View("/transactions", "transactions.html", _facts, title="Transactions"),
    View("/transactions/{transactional_id}", "transaction.html", _transaction),
)
