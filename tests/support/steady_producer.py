"""A process that produces numbered records one after the other until its standard input ends.

    python -m tests.support.steady_producer CLUSTER TOPIC NAME ACKS

Record N of `NAME` has the value of `numbered_producer.value(NAME, N)`. Each acknowledgement is printed as
`acked N PARTITION OFFSET`, each failure as `failed N ERROR`.
"""

import sys
import threading

from spark_log import Producer
from tests.support.numbered_producer import value


def main(address: str, topic: str, name: str, acks: str) -> None:
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    number = 0
    settings = {"acks": "all"} if acks == "all" else {"acks": int(acks), "enable_idempotence": False}
    with Producer(cluster=address, delivery_timeout_ms=120_000, **settings) as producer:
        while not ended.wait(0.01):
            future = producer.send(topic, value(name, number), f"{name}-{number % 7}".encode())
            future.add_callback(lambda m, number=number: print(f"acked {number} {m.partition} {m.offset}", flush=True))
            future.add_errback(lambda error, number=number: print(f"failed {number} {error!r}", flush=True))
            number += 1
    print(f"sent {number}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
