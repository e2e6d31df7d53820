"""A process that appends numbered records and prints their outcomes.

    python -m tests.support.numbered_writer CLUSTER TOPIC WRITER COUNT

It prints `sent N` before and `acked N OFFSET` after the append of record N, whose value begins with `WRITER-N`. Every
third record is too large for the inline tail, so files, blobs, sealing and publication all take place.
"""

import random
import sys

from spark_log.cluster.cluster import Cluster
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import table

SMALL_TAILS = {"inline.max.bytes": "1000", "inline.tail.bytes": "1500"}
"""Topic configs with which a writer uses every code path within a few records."""


def value(writer: str, number: int) -> str:
    filler = random.Random(number).randbytes(1_000).hex() if number % 3 == 2 else ""
    return f"{writer}-{number}-{filler}"


def main(address: str, topic_name: str, writer: str, count: int) -> None:
    log = ClientLog(Cluster.open(address))
    topic = log.find_topic(topic_name)
    for number in range(count):
        print(f"sent {number}", flush=True)
        (outcome,) = log.append(topic, [Records(0, table(value(writer, number)))])
        assert isinstance(outcome, Appended), outcome
        print(f"acked {number} {outcome.base_offset}", flush=True)
    log.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
