"""Decides whether a sequence of an idempotent producer is the next one or repeats a batch. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_log.errors import OutOfOrderSequenceNumberError, ProducerFencedError, UnknownProducerIdError

REMEMBERED_BATCHES = 5
"""The number of batches remembered for each producer and partition, as in Kafka."""


_SEQUENCES = 2**31
"""The number of sequences. A sequence is in [0, 2^31); after the last one comes 0 (Kafka's DefaultRecordBatch)."""

FORGOTTEN_OWNER = ""
"""The owner of a producer id whose sequences have expired: its next batch in a partition may have any sequence. If the
id has expired too, any principal that may write can have been its owner.
"""


@dataclass(frozen=True)
class ProducerSequence:
    """An idempotent producer's position in a partition: the records have sequences from `first` on, without gaps.

    After 2^31 - 1 comes 0. `principal` is the sender, if the sender must be the owner of the producer id.
    """

    producer_id: int
    producer_epoch: int
    first: int
    principal: str | None = None


class RememberedBatch(NamedTuple):
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True)
class ProducerState:
    """A producer in one partition. `batches` are in the order of sending. `epoch` is None if the producer is unknown.

    `transactional` is True if the producer has a transactional id, so that only a commit appends its batches. `owner`
    is the principal that got the producer id from a gateway with ACLs, or FORGOTTEN_OWNER.
    """

    epoch: int | None
    batches: tuple[RememberedBatch, ...] = ()
    transactional: bool = False
    owner: str | None = None

    @property
    def takes_any_sequence(self) -> bool:
        """Whether the sequences have expired. Then the next batch may have any sequence, as in Kafka (KIP-360)."""
        return self.owner == FORGOTTEN_OWNER and not self.batches


def with_batches(producer: ProducerState, batches: Sequence[RememberedBatch]) -> ProducerState:
    """Return the state of a producer in a partition with these batches.

    A transactional producer has one epoch in all partitions. The epoch of another producer is that of its last batch in
    the partition, as in Kafka: a client that may not write to the partition cannot fence a producer that writes to it.
    """
    epoch = producer.epoch
    if epoch is not None and not producer.transactional:
        epoch = max((batch.producer_epoch for batch in batches), default=0)
    return replace(producer, epoch=epoch, batches=tuple(batches))


def check_sequence(sequence: ProducerSequence, record_count: int, producer: ProducerState) -> RememberedBatch | None:
    """Return the remembered batch that a batch with this sequence repeats, or None if it is the next batch.

    Raises UnknownProducerIdError, ProducerFencedError or OutOfOrderSequenceNumberError otherwise.
    """
    who = f"producer {sequence.producer_id}"
    if producer.epoch is None:
        raise UnknownProducerIdError(f"{who}: unknown, or expired")
    if sequence.producer_epoch < producer.epoch:
        raise ProducerFencedError(f"{who}: epoch {sequence.producer_epoch} is fenced by {producer.epoch}")
    last_sequence = sequence_after(sequence.first, record_count - 1)
    if producer.takes_any_sequence:
        return None
    current = [known for known in producer.batches if known.producer_epoch == sequence.producer_epoch]
    for known in current:
        if (known.first_sequence, known.last_sequence) == (sequence.first, last_sequence):
            return known
    if not current and sequence.first != 0:
        raise UnknownProducerIdError(
            f"{who}: the partition has no batch of its epoch {sequence.producer_epoch}, which begins with sequence 0,"
            f" not {sequence.first}"
        )
    expected = sequence_after(current[-1].last_sequence, 1) if current else 0
    if sequence.first != expected:
        raise OutOfOrderSequenceNumberError(f"{who}: sequence {sequence.first} where {expected} was expected")
    return None


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence `count` records later."""
    return (sequence + count) % _SEQUENCES


def sequences_between(first: int, last: int) -> int:
    """Return the number of records from the sequence `first` to the sequence `last`."""
    return (last - first) % _SEQUENCES
