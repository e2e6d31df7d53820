"""Reads the records of a transactional loop, as a member of a consumer group or of a share group."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError
from kafka.structs import MemberState, TopicPartition

from spark_log.clients.consume.consumer import Consumer
from spark_log.clients.consume.share_consumer import ShareConsumer
from spark_log.clients.produce.producer import Producer
from spark_log.cluster.topics import Topic, find_topic
from spark_log.errors import SparkLogError
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.spark.streams.record_retries import POLL_MS, Polled


class GroupSource:
    """A member of a consumer group, whose offsets are part of the transaction."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def poll_records(
        self, timeout_ms: float = POLL_MS, *, max_records: int | None = None, without: Collection[TopicPartition] = ()
    ) -> Polled | None:
        """Return the records of one poll, but not of the partitions in `without`. Return None without records."""
        held = self.consumer.assignment() & set(without) - self.consumer.paused()
        self.consumer.pause(*held)
        try:
            polled = self.consumer.poll(timeout_ms, max_records=max_records)
        finally:
            self.consumer.resume(*held & self.consumer.assignment())
        records = [record for found in polled.values() for record in found]
        starts = {partition: found[0].offset for partition, found in polled.items()}
        return Polled(records, len(records), starts, self.consumer.offsets_to_commit(starts)) if records else None

    def is_at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition has no more record for this member. False if the store does not answer."""
        with suppress(SparkLogError, KafkaError):
            if partition not in self.consumer.assignment():
                return True
            position, end = self.consumer.position(partition, timeout_ms=0), self.consumer.highwater(partition)
            return position is not None and end is not None and position >= end
        return False

    def poll_table(self) -> Polled | None:
        """Return the records of one poll as one table, or None without records."""
        polled = self.consumer.poll_arrow(POLL_MS)
        return self.polled_tables(polled) if polled else None

    def polled_tables(self, polled: Mapping[TopicPartition, pa.Table]) -> Polled:
        starts = {partition: table.column("offset")[0].as_py() for partition, table in polled.items()}
        table = pa.concat_tables(polled.values())
        return Polled(table, table.num_rows, starts, self.consumer.offsets_to_commit(starts))

    def add_to(self, producer: Producer, polled: Polled) -> None:
        """Add the offsets of the records to the producer's open transaction."""
        producer.send_offsets_to_transaction(polled.ends, self.consumer.group_metadata())

    def go_back(self, polled: Polled) -> None:
        """Seek to the first record of the poll, or to the group's committed offset if it is larger.

        Partitions that this member has lost are not changed. An interrupted commit may have succeeded, so a position
        before the committed offset would be wrong.
        """
        mine = self.consumer.assignment() & set(polled.starts)
        committed: dict[Any, int | None] = {}
        with suppress(SparkLogError, KafkaError):
            committed = {partition: self.consumer.committed(partition) for partition in mine}
        for partition in mine:
            offset = max(polled.starts[partition], committed.get(partition) or 0)
            self.consumer.seek(partition, polled.ends[partition]._replace(offset=offset))

    def letter_topic(self, name: str) -> Topic:
        """Return the topic of dead letters. Raises ValueError if the consumer reads it, and
        UnknownTopicOrPartitionError.
        """
        if name in (self.consumer.subscription() or ()):
            raise ValueError(f"dead_letter_topic: {name!r}: expected another topic")
        return self.consumer.cluster.store.read(lambda connection: find_topic(connection, name))

    def assignment(self) -> set[TopicPartition]:
        return self.consumer.assignment()

    def has_assignment(self) -> bool:
        """Whether the group has assigned partitions to this member. Before that, polls return no records."""
        return bool(self.consumer.group_metadata().state == MemberState.STABLE)


class ShareSource:
    """A member of a share group, whose acknowledgements are part of the transaction."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self.consumer = consumer

    def poll_records(self) -> Polled | None:
        """Return the records of one poll, or None without records."""
        records = [record for found in self.consumer.poll(POLL_MS).values() for record in found]
        return Polled(records, len(records), {}, {}) if records else None

    def poll_table(self) -> Polled | None:
        """Return the records of one poll as one table with the column delivery_count, or None without records."""
        tables = self.consumer.poll_arrow(POLL_MS)
        table = pa.concat_tables(tables.values()) if tables else None
        return None if table is None else Polled(table, table.num_rows, {}, {})

    def add_to(self, producer: Producer, polled: Polled) -> None:
        """Accept the records without an acknowledgement, and add all acknowledgements to the open transaction."""
        del polled
        self.consumer.acknowledge_rest(AcknowledgeType.ACCEPT)
        producer.send_share_acknowledgements_to_transaction(
            self.consumer.acknowledgements_for_transaction(), self.consumer.share_group_metadata()
        )

    def go_back(self, polled: Polled) -> None:
        """Release the records that the consumer still has. The abort has released the others."""
        del polled
        with suppress(SparkLogError, KafkaError):  # without this, their locks expire
            self.consumer.release_all()

    def has_assignment(self) -> bool:
        return True
