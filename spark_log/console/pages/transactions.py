"""Shows transactions and their pending records (pages `/transactions` and `/transactions/{transactional_id}`)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from spark_log.console.listing import Listing, listing, row_of
from spark_log.console.routes import Call, NotFound, View
from spark_log.facts.transactions import (
    PendingRecords,
    TransactionDescription,
    describe_open_transactions,
    describe_transactions,
    is_hanging,
    list_transactions,
)
from spark_log.transactions.rules import TransactionState


@dataclass(frozen=True)
class TransactionRow:
    """A transactional producer and its transaction.

    `open_ms` is the time since the transaction began, or None if it is not open. `pending` has the uncommitted records
    of topics that the user sees. `records`, `bytes` and `batches` are their sums. For users who see all topics,
    `batches` is the total of the transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
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
    """The transactions of the page.

    `state` is the requested state, or empty for all. A user who does not see all topics sees only open transactions
    that wrote to visible topics, since the topics of an ended transaction are not stored.
    """

    open: int
    hanging: int
    state: str
    states: Sequence[str]
    listing: Listing[TransactionRow]


_COLUMNS = tuple(field.name for field in fields(TransactionRow) if field.name != "pending")


def _facts(call: Call) -> Transactions:
    cluster = call.cluster
    state = call.query.get("state", "")
    described = {
        description.transaction.transactional_id: description for description in describe_open_transactions(cluster)
    }
    still_open = [row for description in described.values() if _is_visible(call, row := _row(call, description))]
    rows = [
        row
        for transaction in list_transactions(cluster, [state] if state else ())
        if _is_visible(
            call,
            row := _row(call, described.get(transaction.transactional_id, TransactionDescription(transaction, ()))),
        )
    ]
    transactions = listing(
        rows,
        call.query,
        columns=_COLUMNS,
        sort="-open_ms",
        name=lambda row: row.transactional_id,
        first=lambda row: row.hanging,
    )
    hanging = sum(row.hanging for row in still_open)
    return Transactions(len(still_open), hanging, state, [str(each.value) for each in TransactionState], transactions)


def _is_visible(call: Call, row: TransactionRow) -> bool:
    return call.role.sees_all or bool(row.pending)


def _row(call: Call, described: TransactionDescription) -> TransactionRow:
    transaction = described.transaction
    pending = [part for part in described.pending if call.sees(part.topic)]
    return row_of(
        TransactionRow,
        transaction,
        state=str(transaction.state.value),
        hanging=is_hanging(transaction, call.cluster.store.settings.transaction_max_timeout_ms),
        batches=transaction.batches if call.role.sees_all else sum(part.batches for part in pending),
        records=sum(part.records for part in pending),
        bytes=sum(part.bytes for part in pending),
        pending=pending,
    )


def _transaction(call: Call) -> TransactionRow:
    name = call.path["transactional_id"]
    [described] = describe_transactions(call.cluster, [name])
    row = _row(call, described)
    if not _is_visible(call, row):
        raise NotFound(f"transactional id {name!r}: there is no producer with it")
    return row


VIEWS = (
    View("/transactions", "transactions.html", _facts, title="Transactions"),
    View("/transactions/{transactional_id}", "transaction.html", _transaction),
)
