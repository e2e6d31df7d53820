"""Members of share groups in this process, which poll and acknowledge without a client."""

from collections.abc import Sequence

from spark_log.cluster.cluster import Cluster
from spark_log.groups.share.members import ShareAnswer, ShareHeartbeat, leave_share_group, share_heartbeat
from spark_log.groups.share.polling import Result, SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import Acknowledgement, AcknowledgeType, Range, Request
from spark_log.log.partitions.partition_rows import Key


class ShareMember:
    """A member of a share group. It joins when it is made."""

    def __init__(
        self, cluster: Cluster, topics: Sequence[str] = ("t",), group: str = "workers", member: str = "m1"
    ) -> None:
        self.cluster, self.group, self.member = cluster, group, member
        self._polls = SharePolls(cluster, ShareReads(cluster))
        heartbeat = ShareHeartbeat(group, member, 0, frozenset(topics), None, "client", "host")
        self.answer: ShareAnswer = share_heartbeat(cluster, heartbeat)
        self.assigned: dict[Key, str] = {
            (fact.topic_id, number): name
            for name, fact in (self.answer.assignment or {}).items()
            for number in range(fact.partition_count)
        }

    def poll(self, records_max: int = 500) -> dict[Key, list[Range]]:
        """Acquire records, and return their ranges by partition."""
        request = Request(self.member, records_max, whole_batches=False)
        result = self._polls.poll(self.group, request, self.assigned)
        return {taken.key: [part for part, _ in taken.parts] for taken in result.taken}

    def acknowledge(self, acquired: dict[Key, list[Range]], kind: AcknowledgeType, delay_ms: int = 0) -> Result:
        acks = {
            key: [Acknowledgement(r.first, r.end, r.lock, self.member, kind, delay_ms) for r in ranges]
            for key, ranges in acquired.items()
        }
        return self._polls.acknowledge(self.group, self.member, acks)

    def leave(self) -> None:
        leave_share_group(self.cluster.store, self.group, self.member)
