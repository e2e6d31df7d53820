"""A process that produces numbered records with keys to several topics until its standard input ends.

    python -m tests.support.keyed_producer CLUSTER KEYS TOPIC...

Record N goes to every topic, with key `k<N modulo KEYS>` and value `<N>` and some padding; every 11th is a tombstone in
the topics whose name begins with `latest`. Each acknowledgement is printed as `acked TOPIC PARTITION OFFSET N`.
"""

import sys

from spark_log import Producer
from tests.support.waiting import end_of_input

PADDING = "." * 100


def value(topic: str, number: int) -> bytes | None:
    return None if topic.startswith("latest") and number % 11 == 0 else f"{number}{PADDING}".encode()


def main(address: str, keys: int, topics: list[str]) -> None:
    ended = end_of_input()
    number = 0
    with Producer(cluster=address, delivery_timeout_ms=120_000) as producer:
        while not ended.wait(0.005):
            for topic in topics:
                future = producer.send(topic, value(topic, number), f"k{number % keys}".encode())
                future.add_callback(
                    lambda m, number=number: print(f"acked {m.topic} {m.partition} {m.offset} {number}", flush=True)
                )
            number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
