"""A process that consumes a topic in a group, prints the records that it processed, and commits.

    python -m tests.support.numbered_consumer CLUSTER TOPIC GROUP COMMIT_EVERY [SESSION_MS]

It prints `assigned N...`, `processed PARTITION OFFSET VALUE` for each record, and `committed` after each commit. It
commits after every COMMIT_EVERY polls. It ends when its standard input ends.
"""

import sys

from kafka import ConsumerRebalanceListener

from spark_log import Consumer
from tests.support.waiting import end_of_input


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    def on_partitions_revoked(self, revoked: set[tuple[str, int]]) -> None:
        print("revoked", *sorted(number for _, number in revoked), flush=True)

    def on_partitions_assigned(self, assigned: set[tuple[str, int]]) -> None:
        print("assigned", *sorted(number for _, number in assigned), flush=True)


def main(address: str, topic: str, group: str, commit_every: int, session_ms: int = 1_500) -> None:
    ended = end_of_input()
    with Consumer(
        cluster=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=3,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=200,
    ) as consumer:
        consumer.subscribe([topic], listener=Listener())
        polls = 0
        while not ended.is_set():
            for partition, records in consumer.poll(100).items():
                for record in records:
                    print("processed", partition.partition, record.offset, record.value.decode(), flush=True)
                polls += 1
            if polls >= commit_every:
                consumer.commit()
                print("committed", flush=True)
                polls = 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
