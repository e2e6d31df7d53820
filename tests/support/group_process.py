"""A process that is a member of a group and prints its actions.

    python -m tests.support.group_process CLUSTER GROUP SESSION_MS

Lines: `took P T` and `dropped P T` (partition, monotonic seconds of the host) around the time that it holds a
partition; `committed P OFFSET` after a commit of one more than the last one; `refused ERROR`. On `pause` it prints
`paused` and waits for `go`; then it first commits the partitions that it held. At the end of its input it leaves the
group.
"""

import os
import select
import sys
import time
from collections.abc import Iterable

from kafka.structs import OffsetAndMetadata

from spark_log.cluster.cluster import Cluster
from spark_log.errors import IllegalGenerationError, UnknownMemberIdError
from spark_log.groups.committed_offsets import committed
from spark_log.ids import TopicPartition
from tests.support.group_members import Reader

_PACE_S = 0.01
"""Pause between heartbeats, so that several such processes and their test fit on a small machine."""


def say(*words: object) -> None:
    print(*words, flush=True)


def main(address: str, group: str, session_ms: int) -> None:
    cluster = Cluster.open(address)
    reader = Reader(cluster, group=group, session_ms=session_ms)
    held: frozenset[TopicPartition] = frozenset()
    waiting = b""

    def drop(partitions: Iterable[TopicPartition]) -> None:
        for partition in sorted(partitions):
            say("dropped", partition.partition, time.monotonic())

    def commit() -> None:
        known = committed(cluster.store, group, held)
        next_ = {p: known[p].offset + 1 if p in known else 1 for p in sorted(held)}
        try:
            reader.member.commit({p: OffsetAndMetadata(offset, "", -1) for p, offset in next_.items()})
        except (UnknownMemberIdError, IllegalGenerationError) as error:
            say("refused", type(error).__name__)
        else:
            for p, offset in next_.items():
                say("committed", p.partition, offset)

    while True:
        try:
            answer = reader.beat()
        except UnknownMemberIdError:
            drop(held)
            held = reader.held = frozenset()
            say("lost")
            continue
        drop(held - answer.partitions)
        for partition in sorted(answer.partitions - held):
            say("took", partition.partition, time.monotonic())
        held = answer.partitions
        if held:
            commit()
        if select.select([0], [], [], _PACE_S)[0]:
            waiting = os.read(0, 100)
            if not waiting:
                break
            assert waiting == b"pause\n"
            say("paused")
            assert os.read(0, 100) == b"go\n"
            commit()
    drop(held)
    reader.member.leave()
    cluster.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
