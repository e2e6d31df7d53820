"""A process with a share consumer, which does what its input says and prints the outcome.

    python -m tests.support.share_process CLUSTER TOPIC GROUP

Commands, one a line: `poll` waits for records, and prints `polled OFFSET:COUNT ...`. `accept`, `release` and `reject`
acknowledge the records of the last poll, commit, and print `committed` with `None`, or the name of the error of the
partition. At the end of its input it closes.
"""

import sys

from spark_log import AcknowledgeType, ShareConsumer

TIMEOUT_MS = 30_000


def main(address: str, topic: str, group: str) -> None:
    with ShareConsumer(topic, cluster=address, group_id=group, share_acknowledgement_mode="explicit") as consumer:
        polled = []
        for line in sys.stdin:
            command = line.strip()
            if command == "poll":
                polled = [record for records in consumer.poll(TIMEOUT_MS).values() for record in records]
                print("polled", *(f"{record.offset}:{record.delivery_count}" for record in polled), flush=True)
            else:
                for record in polled:
                    consumer.acknowledge(record, AcknowledgeType[command.upper()])
                errors = {str(None if e is None else type(e).__name__) for e in consumer.commit_sync().values()}
                print("committed", *sorted(errors), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
