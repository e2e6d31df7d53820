"""A process that produces numbered records and prints their outcomes.

    python -m tests.support.numbered_producer CLUSTER TOPIC NAME COUNT [SETTING=NUMBER ...]

Record N of `NAME` has the value `NAME-N-filler` and the key `NAME-(N modulo 7)`; every tenth is too large for the
inline tail of SMALL_TAILS. Each acknowledgement is printed as `acked N PARTITION OFFSET` by a callback, each failure as
`failed N ERROR`, and every hundred records are flushed.
"""

import random
import sys
from typing import Any

from spark_log import Producer


def value(name: str, number: int) -> bytes:
    filler = random.Random(number).randbytes(1_000).hex() if number % 10 == 9 else ""
    return f"{name}-{number}-{filler}".encode()


def main(address: str, topic: str, name: str, count: int, settings: dict[str, Any]) -> None:
    with Producer(cluster=address, **settings) as producer:
        for number in range(count):
            future = producer.send(topic, value(name, number), f"{name}-{number % 7}".encode())
            future.add_callback(lambda m, number=number: print(f"acked {number} {m.partition} {m.offset}", flush=True))
            future.add_errback(lambda error, number=number: print(f"failed {number} {error!r}", flush=True))
            if number % 100 == 99:
                producer.flush()


if __name__ == "__main__":
    given = dict(text.split("=") for text in sys.argv[5:])
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), {name: int(text) for name, text in given.items()})
