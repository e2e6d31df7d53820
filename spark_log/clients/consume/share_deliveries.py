"""Keeps the records that a share consumer holds: acquired, not yet acknowledged. Pure, apart from reading the clock."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition

from spark_log.errors import IllegalStateError
from spark_log.groups.share.rules import Acknowledgement, AcknowledgeType, Range
from spark_log.log.partitions.partition_rows import Key

_NONE, _RENEWED = -1, -2
"""Types of a record that is not acknowledged: since its delivery, or since its lock was renewed."""


@dataclass(eq=False)
class Delivery:
    """The records of one acquired range, with the offset and the acknowledgement type of each."""

    partition: TopicPartition
    key: Key
    acquired: Range
    records: pa.RecordBatch
    offsets: Any
    types: Any
    returned: int = 0
    """The number of records that `poll` has returned, from the first one on."""
    delays_ms: dict[int, int] = field(default_factory=dict)
    lock_ends_s: float = 0.0
    """When the lock ends, by this process's monotonic clock."""

    @property
    def marked(self) -> bool:
        return bool((self.types >= 0).any())

    @property
    def unacknowledged(self) -> bool:
        """Whether a returned record has no acknowledgement, and its lock was not renewed."""
        return bool((self.types[: self.returned] == _NONE).any())


class Deliveries:
    """The deliveries of a consumer, in the order of their acquisition. Not thread-safe."""

    def __init__(self) -> None:
        self._held: list[Delivery] = []

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._held)

    def add(
        self, partition: TopicPartition, key: Key, parts: Sequence[tuple[Range, pa.RecordBatch]], lock_ends_s: float
    ) -> None:
        """Hold the records of the acquired ranges. Earlier deliveries of them to this consumer have ended, so what is
        held of those is forgotten, except for acknowledgements, which are sent in this poll.
        """
        offsets = [records.column("offset").to_numpy() for _, records in parts]
        acquired = np.concatenate(offsets)
        for each in list(self._held):
            unsent = each.types < 0
            if each.key == key and unsent.any():
                self._keep(each, ~(unsent & np.isin(each.offsets, acquired)))
        for (range_, records), mine in zip(parts, offsets, strict=True):
            types = np.full(len(mine), _NONE, dtype=np.int8)
            self._held.append(Delivery(partition, key, range_, records, mine, types, lock_ends_s=lock_ends_s))

    def buffered(self, now_s: float) -> Iterator[Delivery]:
        """Yield the deliveries with records that `poll` has not returned. If its lock has ended, a
        delivery drops these records: other members may have them.
        """
        for each in list(self._held):
            if each.returned < len(each.offsets):
                if each.lock_ends_s <= now_s:
                    self._drop_rest(each)
                else:
                    yield each

    def _drop_rest(self, delivery: Delivery) -> None:
        delivery.offsets, delivery.types = delivery.offsets[: delivery.returned], delivery.types[: delivery.returned]
        delivery.records = delivery.records.slice(0, delivery.returned)
        if not delivery.returned:
            self._held.remove(delivery)

    def drop_buffered(self) -> None:
        """Forget the records that `poll` has not returned."""
        for each in list(self._held):
            self._drop_rest(each)

    @property
    def unacknowledged(self) -> bool:
        return any(each.unacknowledged for each in self._held)

    @property
    def due_s(self) -> float | None:
        """The time at which the first lock ends among the deliveries with unsent acknowledgements."""
        return min((each.lock_ends_s for each in self._held if each.marked), default=None)

    def mark(self, topic: str, partition: int, offset: int, kind: AcknowledgeType, delay_ms: int = 0) -> None:
        """Acknowledge a record. Raises IllegalStateError if `poll` has not returned it, or it is held no longer."""
        for delivery in reversed(self._held):
            if delivery.partition == (topic, partition):
                at = int(np.searchsorted(delivery.offsets, offset))
                if at < delivery.returned and delivery.offsets[at] == offset:
                    delivery.types[at] = kind
                    delivery.delays_ms.pop(offset, None)
                    if delay_ms:
                        delivery.delays_ms[offset] = delay_ms
                    return
        raise IllegalStateError(f"The record cannot be acknowledged: {topic}-{partition} offset {offset} is not held")

    def mark_table(self, table: pa.Table, kind: AcknowledgeType) -> None:
        """Acknowledge all records of a table of one partition, which `poll_arrow` returned."""
        if not table.num_rows:
            return
        partition = TopicPartition(table.column("topic")[0].as_py(), table.column("partition")[0].as_py())
        offsets = table.column("offset").to_numpy()
        marked = 0
        for delivery in self._held:
            if delivery.partition == partition:
                chosen = np.flatnonzero(np.isin(delivery.offsets[: delivery.returned], offsets))
                if len(chosen):
                    delivery.types[chosen] = kind
                    marked += len(chosen)
        if marked != table.num_rows:
            raise IllegalStateError(f"{table.num_rows - marked} records of {partition} are not held")

    def mark_rest(self, kind: AcknowledgeType) -> None:
        """Acknowledge each returned record that is not acknowledged."""
        for each in self._held:
            returned = each.types[: each.returned]
            returned[returned < 0] = kind

    def accept_returned(self) -> None:
        """Accept each returned record that is not acknowledged, but not those whose lock was renewed."""
        for each in self._held:
            returned = each.types[: each.returned]
            returned[returned == _NONE] = AcknowledgeType.ACCEPT

    def release_all(self) -> None:
        """Release each returned record, whatever its acknowledgement."""
        for each in self._held:
            each.types[: each.returned] = AcknowledgeType.RELEASE

    def marked(self) -> list[Delivery]:
        return [each for each in self._held if each.marked]

    def locks(self) -> dict[Key, frozenset[int]]:
        """Return the locks of all held records."""
        locks: dict[Key, frozenset[int]] = {}
        for each in self._held:
            locks[each.key] = locks.get(each.key, frozenset()) | {each.acquired.lock}
        return locks

    def sent(self, deliveries: Iterable[Delivery], renewed_until_s: float) -> None:
        """Forget acknowledged records, except those with RENEW. If all held records of a delivery have RENEW, its lock
        ends at `renewed_until_s`. Otherwise its end stays, as the locks of the other records were not renewed.
        """
        for delivery in deliveries:
            renewed = delivery.types == AcknowledgeType.RENEW
            kept = renewed | (delivery.types < 0)
            delivery.types[renewed] = _RENEWED
            if renewed.any() and (renewed == kept).all():
                delivery.lock_ends_s = renewed_until_s
            self._keep(delivery, kept)

    def _keep(self, delivery: Delivery, kept: Any) -> None:
        """Forget the records of a delivery for which `kept` is False."""
        if kept.all():
            return
        if not kept.any():
            self._held.remove(delivery)
            return
        delivery.returned = int(kept[: delivery.returned].sum())
        delivery.offsets, delivery.types = delivery.offsets[kept], delivery.types[kept]
        delivery.records = delivery.records.filter(pa.array(kept))
        offsets = set(delivery.offsets.tolist())
        delivery.delays_ms = {offset: ms for offset, ms in delivery.delays_ms.items() if offset in offsets}

    def lost(self, deliveries: Iterable[Delivery]) -> None:
        """Forget records whose acknowledgement was refused: this member no longer holds them."""
        for each in deliveries:
            if each in self._held:
                self._held.remove(each)


def acknowledgements(deliveries: Sequence[Delivery], member_id: str) -> dict[Key, list[Acknowledgement]]:
    """Return the acknowledgements of marked records, as ranges of equal ones."""
    ranges: dict[Key, list[Acknowledgement]] = {}
    for delivery in deliveries:
        chosen = np.flatnonzero(delivery.types >= 0)
        if not len(chosen):
            continue
        offsets, types = delivery.offsets[chosen], delivery.types[chosen]
        delays = (
            np.array([delivery.delays_ms.get(offset, 0) for offset in offsets.tolist()]) if delivery.delays_ms else None
        )
        new = (np.diff(offsets) != 1) | (np.diff(types) != 0)
        if delays is not None:
            new |= np.diff(delays) != 0
        begins = [0, *(np.flatnonzero(new) + 1).tolist()]
        ends = [*begins[1:], len(offsets)]
        for begin, end in zip(begins, ends, strict=True):
            kind = AcknowledgeType(int(types[begin]))
            delay_ms = 0 if delays is None else int(delays[begin])
            ranges.setdefault(delivery.key, []).append(
                Acknowledgement(
                    int(offsets[begin]), int(offsets[end - 1]) + 1, delivery.acquired.lock, member_id, kind, delay_ms
                )
            )
    return ranges


def acknowledged_offsets(deliveries: Sequence[Delivery]) -> dict[TopicPartition, list[int]]:
    """Return the offsets of marked records by partition."""
    found: dict[TopicPartition, list[int]] = {}
    for each in deliveries:
        found.setdefault(each.partition, []).extend(each.offsets[each.types >= 0].tolist())
    return {partition: sorted(offsets) for partition, offsets in found.items() if offsets}
