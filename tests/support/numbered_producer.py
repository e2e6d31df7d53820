"""A process that produces numbered records and prints their outcomes.

    python -m tests.support.numbered_producer CLUSTER TOPIC NAME [COUNT] [SETTING=VALUE ...]

Record N of `NAME` has the value `NAME-N-filler` and the key `NAME-(N modulo 7)`; every tenth is too large for the
inline tail of SMALL_TAILS. Each acknowledgement is printed as `acked N PARTITION OFFSET` by a callback, each failure as
`failed N ERROR`. With COUNT, every hundred records are flushed. Without, it produces a hundred records a second until
its standard input ends, and then prints `sent NUMBER`.
"""

import itertools
import random
import sys
from typing import Any

from spark_log import Producer
from tests.support.waiting import end_of_input

PAUSE_S = 0.01


def value(name: str, number: int) -> bytes:
    filler = random.Random(number).randbytes(1_000).hex() if number % 10 == 9 else ""
    return f"{name}-{number}-{filler}".encode()


def main(address: str, topic: str, name: str, count: int | None, settings: dict[str, Any]) -> None:
    ended = end_of_input() if count is None else None
    with Producer(cluster=address, **settings) as producer:
        for number in itertools.count():
            if number == count or (ended is not None and ended.wait(PAUSE_S)):
                break
            future = producer.send(topic, value(name, number), f"{name}-{number % 7}".encode())
            future.add_callback(lambda m, number=number: print(f"acked {number} {m.partition} {m.offset}", flush=True))
            future.add_errback(lambda error, number=number: print(f"failed {number} {error!r}", flush=True))
            if count is not None and number % 100 == 99:
                producer.flush()
    if count is None:
        print(f"sent {number}", flush=True)


if __name__ == "__main__":
    given = dict(text.split("=") for text in sys.argv[4:] if "=" in text)
    counts = [int(text) for text in sys.argv[4:] if "=" not in text]
    values = {setting: int(text) if text.isdigit() else text for setting, text in given.items()}
    main(sys.argv[1], sys.argv[2], sys.argv[3], counts[0] if counts else None, values)
