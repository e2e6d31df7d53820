"""Checks and keeps the sequences of a Kafka client's transactions. Pure.

The records of a client have sequences (KIP-98). The last ones are kept after an abort, because clients continue from
them.
"""

from collections.abc import Sequence
from dataclasses import replace

from spark_log.errors import SparkLogError
from spark_log.log.append.rules import (
    Appended,
    Batch,
    Rejected,
    remember,
)
from spark_log.log.append.sequence_rules import (
    ProducerState,
    RememberedBatch,
    check_sequence,
    sequences_between,
)


def accept(
    state: ProducerState, pending: Sequence[RememberedBatch], batch: Batch
) -> tuple[Appended | Rejected, RememberedBatch | None]:
    """Return the outcome of a batch of the open transaction in a partition, and the batch to remember if it is new.

    `state` is the producer in the partition before the transaction. `pending` are its last pending batches there, in
    order. The offsets of pending batches are -1.
    """
    assert batch.sequence is not None
    with_pending = replace(state, batches=(*state.batches, *pending))
    try:
        repeated = check_sequence(batch.sequence, batch.record_count, with_pending)
    except SparkLogError as error:
        return Rejected(error), None
    if repeated is not None:
        return Appended(-1, -1, duplicate=True), None
    return Appended(-1, -1), remember(with_pending, batch, Appended(-1, -1)).batches[-1]


def provisional(log_end_offset: int, first_sequence: int, batch: Batch) -> Appended:
    """Return the offsets that a pending batch would have if its transaction were committed now.

    `first_sequence` is the first sequence of the transaction's first pending batch in the partition.
    """
    assert batch.sequence is not None
    base = log_end_offset + sequences_between(first_sequence, batch.sequence.first)
    return Appended(base, base + batch.record_count)


def remember_aborted(state: ProducerState, last: RememberedBatch) -> ProducerState:
    """Return the producer in a partition after an abort. It remembers the `last` batch of the aborted transaction.

    That batch has an empty range of offsets, after the last batch with offsets. Batches of earlier epochs are
    forgotten, because they may have the same sequences.
    """
    epoch = [known for known in state.batches if known.producer_epoch == last.producer_epoch]
    # a batch with the same first sequence was sent by another client: that is why the commit failed
    there = [
        known for known in epoch if known.base_offset < known.end_offset and known.first_sequence != last.first_sequence
    ]
    end = max((known.end_offset for known in there), default=0)
    return replace(state, batches=(*there, last._replace(base_offset=end, end_offset=end)))
