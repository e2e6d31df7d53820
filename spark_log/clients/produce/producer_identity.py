"""Keeps the identity of an idempotent producer in each partition: producer id, epoch, next sequence.

A partition keeps its identity while the outcome of every batch is known: its sequences have no gaps, and a batch that
is appended again with its old sequence is recognized as a duplicate. If a batch has failed but may still be appended,
the partition continues in the next epoch, from sequence 0: the store refuses batches of an epoch before that of the
partition's last batch. Kafka increases the epoch of the whole producer instead. With that rule, a batch of another
partition whose outcome is unknown too could be appended twice. If the store has forgotten the producer, the partition
continues with a new producer id.
"""

from collections.abc import Callable

from spark_log.log.append.sequence_rules import ProducerSequence, sequence_after
from spark_log.transactions.rules import EPOCH_MAX

Key = tuple[int, int]
"""Topic id and partition."""


class Identity:
    """The identities of one producer, for the sender's thread only. `register` creates a new producer id."""

    def __init__(self, register: Callable[[], int]) -> None:
        self._register = register
        self._id: int | None = None
        self._next: dict[Key, ProducerSequence] = {}

    def sequence(self, key: Key) -> ProducerSequence:
        """Return the sequence of the partition's next batch. It stays the same until one of the later methods."""
        if key not in self._next:
            if self._id is None:
                self._id = self._register()
            self._next[key] = ProducerSequence(self._id, 0, 0)
        return self._next[key]

    def advance(self, key: Key, count: int) -> None:
        """Count the append of the partition's next batch, which has `count` records."""
        at = self._next[key]
        self._next[key] = ProducerSequence(at.producer_id, at.producer_epoch, sequence_after(at.first, count))

    def begin_epoch(self, key: Key) -> None:
        """Continue the partition in the next epoch of its producer id, from sequence 0."""
        old = self._next.get(key)
        if old is not None and old.producer_epoch < EPOCH_MAX:
            self._next[key] = ProducerSequence(old.producer_id, old.producer_epoch + 1, 0)
        else:
            self.reset(key)

    def reset(self, key: Key) -> None:
        """Give the partition a new producer id, from sequence 0."""
        old = self._next.pop(key, None)
        if old is not None and old.producer_id == self._id:
            self._id = None
