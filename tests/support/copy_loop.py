"""A process that copies topic `in` to topic `out`, each poll in a transaction with the group's offsets.

    python -m tests.support.copy_loop CLUSTER NAME SESSION_MS INSTANCE LIFE...

INSTANCE is the group_instance_id, `-` for none. It prints `copied PARTITION OFFSET` for each record after the commit,
and `again ERROR` when it must abort and read again. On `pause` it prints `pausing`; in its next transaction, with
pending records, it prints `paused` and waits for `go`. At the end of its input it ends when everything is copied.
"""

import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer, Producer
from tests.support.lives import live, say

SOURCE, TARGET, GROUP = "in", "out", "copiers"


def transformed(value: bytes) -> bytes:
    return value.upper()


class Copier:
    def __init__(self, consumer: Consumer, producer: Producer) -> None:
        self._consumer, self._producer = consumer, producer
        self._transactions = 0
        self._pausing = self._ending = False

    def work(self) -> None:
        while not (self._ending and self._done()):
            self._listen()
            polled = self._consumer.poll(50)
            if polled:
                try:
                    self._copy(polled)
                except KafkaError as error:
                    say("again", type(error).__name__)
                    self._producer.abort_transaction()
                    self._rewind()

    def _listen(self) -> None:
        if not self._ending and select.select([0], [], [], 0)[0]:
            word = os.read(0, 100)
            if word:
                assert word == b"pause\n"
                self._pausing = True
                say("pausing")
            self._ending = not word

    def _copy(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        self._producer.begin_transaction()
        for (_, number), records in polled.items():
            for record in records:
                self._producer.send(TARGET, transformed(record.value), record.key, partition=number)
        self._transactions += 1
        if self._transactions % 4 == 2:  # as if the transformation had failed
            self._producer.flush()
            self._producer.abort_transaction()
            self._rewind()
            return
        ends = {partition: OffsetAndMetadata(records[-1].offset + 1, "", -1) for partition, records in polled.items()}
        self._producer.send_offsets_to_transaction(ends, self._consumer.group_metadata())
        if self._pausing:
            self._producer.flush()
            self._pausing = False
            say("paused")
            assert os.read(0, 100) == b"go\n"
        self._producer.commit_transaction()
        for (_, number), records in polled.items():
            for record in records:
                say("copied", number, record.offset)

    def _rewind(self) -> None:
        """Seek to the committed offsets of the group."""
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self._consumer.committed(partition) or 0)

    def _done(self) -> bool:
        partitions = [TopicPartition(SOURCE, number) for number in self._consumer.partitions_for_topic(SOURCE) or ()]
        ends = self._consumer.end_offsets(partitions)
        return all(self._consumer.committed(partition) == ends[partition] for partition in partitions)


def main(address: str, name: str, session_ms: int, instance: str, lives: list[str]) -> None:
    def work(under_way: Callable[[], None]) -> None:
        with (
            Producer(cluster=address, transactional_id=f"copy-{name}") as producer,
            Consumer(
                SOURCE,
                cluster=address,
                group_id=GROUP,
                group_instance_id=None if instance == "-" else instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_records=3,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=session_ms // 5,
            ) as consumer,
        ):
            producer.init_transactions()
            under_way()
            Copier(consumer, producer).work()

    live(lives, work)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
