"""The commands `spark-log transaction …`, which show transactions and abort hanging ones."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli.output import (
    bytes_of,
    count_of,
    duration_of,
    print_facts,
    print_json,
    print_rows,
    print_table,
    say,
    time_of,
)
from spark_log.cli.shared_options import Cluster_, Json, open_cluster

if TYPE_CHECKING:
    from spark_log.facts.transactions import TransactionDescription, TransactionListing

app = typer.Typer(no_args_is_help=True, help="Show transactions, and abort those that hang.")

TransactionalId = Annotated[
    str, typer.Argument(metavar="ID", help="transactional_id of the producer.", show_default=False)
]


@app.command("list")
def list_(
    cluster: Cluster_,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="Only these: Empty, Ongoing, CompleteCommit, CompleteAbort; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the current or last transaction of every transactional id.

    A transaction without records is not in the store, and so is not listed as Ongoing. A coordinator, the next producer
    with the same id, or `spark-log maintenance transactions` aborts an abandoned transaction.

    Parts are the data stores with records of the open transaction. "Not in" names the stores that have not appended the
    records of a committed transaction yet.

    **Examples**

    - `spark-log transaction list --state Ongoing`
    - `spark-log transaction abort load-1 --yes`
    """
    from spark_log.facts.transactions import list_transactions

    states = _states(state or ())
    with open_cluster(cluster) as opened:
        transactions = list_transactions(opened, states)
    columns = ("transactional id", "state", "open for", "time-out", "batches", "producer", "epoch", "parts")
    empty = "There is no transaction of these states." if states else "There is no transactional id."
    print_rows(as_json, [asdict(each) for each in transactions], columns, [_row(each) for each in transactions], empty)


@app.command()
def describe(transactional_id: TransactionalId, cluster: Cluster_, as_json: Json = False) -> None:
    """Show a transactional id with its producer, the state of its transaction, and the pending batches by partition."""
    from spark_log.facts.transactions import describe_transactions

    with open_cluster(cluster) as opened:
        [described] = describe_transactions(opened, [transactional_id])
    transaction = described.transaction
    if as_json:
        print_json(_as_json(described))
        return
    print_facts(
        {
            "transactional id": transaction.transactional_id,
            "producer": transaction.producer_id,
            "epoch": transaction.producer_epoch,
            "state": transaction.state.value,
            "began": None if transaction.began_ms is None else time_of(transaction.began_ms),
            "open for": _open_for(transaction),
            "time-out": duration_of(transaction.timeout_ms),
            "parts": _parts(transaction),
        }
    )
    if described.pending:
        rows = [
            (f"{each.topic}-{each.partition}", each.batches, each.records, bytes_of(each.bytes))
            for each in described.pending
        ]
        print_table("pending", ("partition", "batches", "records", "bytes"), rows)


@app.command()
def abort(
    transactional_id: TransactionalId,
    cluster: Cluster_,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Abort the open transaction of a transactional id, and drop its records.

    The command fences no producer. A running producer gets TransactionAbortableError at its next call, aborts, and
    continues with the next transaction.
    """
    from spark_log.errors import InvalidTxnStateError
    from spark_log.facts.transactions import describe_transactions
    from spark_log.transactions.transaction_parts import abort as abort_transaction

    with open_cluster(cluster) as opened:
        [described] = describe_transactions(opened, [transactional_id])
        transaction = described.transaction
        if transaction.open_ms is None:
            raise InvalidTxnStateError(
                f"transactional id {transactional_id!r} has no open transaction: its state is {transaction.state}"
            )
        records = count_of(sum(each.records for each in described.pending), "record")
        if not yes:
            asked = f"Abort the transaction of {transactional_id} (open for {_open_for(transaction)}, {records})?"
            typer.confirm(asked, abort=True, err=True)
        abort_transaction(opened, transaction.ref)  # exactly the transaction that was shown, no later one
    say(f"Aborted the transaction of {transactional_id}: {records} dropped.")


@app.command("find-hanging")
def find_hanging(
    cluster: Cluster_,
    max_timeout_ms: Annotated[
        int, typer.Option("--max-timeout-ms", metavar="MS", min=0, help="The largest expected time-out.")
    ] = 900_000,
    as_json: Json = False,
) -> None:
    """Find open transactions that are past their own time-out, or 5 minutes past --max-timeout-ms.

    They delay no reader, but keep their records in the store. A coordinator aborts transactions past their time-out
    within seconds. Without a coordinator, run `spark-log maintenance transactions`.
    """
    from spark_log.facts.transactions import find_hanging

    with open_cluster(cluster) as opened:
        hanging = find_hanging(opened, max_timeout_ms)
    columns = ("transactional id", "open for", "time-out", "partitions", "records")
    rows = [
        (
            description.transaction.transactional_id,
            _open_for(description.transaction),
            duration_of(description.transaction.timeout_ms),
            ", ".join(f"{part.topic}-{part.partition}" for part in description.pending),
            sum(part.records for part in description.pending),
        )
        for description in hanging
    ]
    document = [_as_json(description) for description in hanging]
    print_rows(as_json, document, columns, rows, "There is no hanging transaction.")


def _states(names: Sequence[str]) -> set[str]:
    from spark_log.transactions.rules import TransactionState

    known = {state.value.lower(): state.value for state in TransactionState}
    for name in names:
        if name.lower() not in known:
            raise typer.BadParameter(f"{name!r}: expected {', '.join(known.values())}", param_hint="--state")
    return {known[name.lower()] for name in names}


def _row(each: "TransactionListing") -> tuple[object, ...]:
    return (
        each.transactional_id, each.state.value, _open_for(each), duration_of(each.timeout_ms), each.batches,
        each.producer_id, each.producer_epoch, _parts(each),
    )  # fmt: skip


def _parts(transaction: "TransactionListing") -> str | None:
    stores = ", ".join(transaction.stores) or None
    return f"not in {stores}" if transaction.unfinished else stores


def _open_for(transaction: "TransactionListing") -> str | None:
    if transaction.open_ms is None:
        return None
    return duration_of(transaction.open_ms) + (", overdue" if transaction.overdue else "")


def _as_json(described: "TransactionDescription") -> dict[str, Any]:
    return {**asdict(described.transaction), "pending": [asdict(each) for each in described.pending]}
