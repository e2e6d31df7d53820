"""The lineage checker: a partition whose log is truncated and whose topic is recreated, with checks of readers.

Every record contains its position at the append: topic id, leader epoch and offset. A *lineage* is the content of the
log at one moment. A reader must see a prefix of one lineage from the first offset on. If the log diverges from the
records that it has seen, it must report the offset of divergence and continue there.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from spark_log.cluster.cluster import Cluster
from spark_log.facts.topics import PartitionInfo, describe_topics
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.replication.replicas.catch_up import catch_up
from tests.support.records import table
from tests.support.replicas import add_brokers, bring_back, inspect_and_elect, take_away, topic_on


class Tag(NamedTuple):
    """The position at which a record was appended."""

    topic_id: int
    leader_epoch: int
    offset: int

    @property
    def text(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def of(cls, value: bytes | str) -> "Tag":
        return cls(*map(int, (value.decode() if isinstance(value, bytes) else value).split(":")))


class TaggedLog:
    """Partition 0 of a topic on brokers 2 and 3 of a cluster, each with a log dir in `folder`; unclean elections are
    allowed. `records` is the content of the log, `lineages` are all former and current contents.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.name = cluster, "t"
        if {info.broker_id for info in cluster.log_dirs().values()} == {1}:
            add_brokers(cluster, folder, 2, 3)
        self.log = ClientLog(cluster)
        self.lineages: list[tuple[Tag, ...]] = []
        self._create()

    def _create(self) -> None:
        self.topic = topic_on(
            self.cluster, self.name, [[2, 3]], unclean_leader_election_enable="true", inline_max_bytes="0"
        )
        self.records: list[Tag] = []
        self.away: int | None = None
        """The broker of the follower that is offline."""
        self.fork_offset = 0

    def append(self, count: int = 1) -> None:
        epoch = self._partition().leader_epoch
        tags = [Tag(self.topic.topic_id, epoch, len(self.records) + n) for n in range(count)]
        [outcome] = self.log.append(self.topic, [Records(0, table(*(tag.text for tag in tags)))])
        assert outcome == Appended(tags[0].offset, tags[-1].offset + 1)
        self.records += tags
        self.lineages.append(tuple(self.records))

    def fork(self) -> None:
        """The follower goes offline: later records are on the leader only."""
        leader = self._partition().leader
        self.away = next(broker for broker in (2, 3) if broker != leader)
        take_away(self.cluster, self.away)
        self.fork_offset = len(self.records)

    def join(self) -> None:
        """The follower returns and catches up."""
        assert self.away is not None
        self._bring_back(self.away)
        self.away = None

    def cut(self) -> None:
        """The leader is lost and the follower takes over: the records appended since `fork` are no
        longer in the log.
        """
        leader, follower = self._partition().leader, self.away
        assert leader is not None and follower is not None
        take_away(self.cluster, leader)
        bring_back(self.cluster, follower)
        inspect_and_elect(self.cluster)
        self.away = None
        del self.records[self.fork_offset :]
        self.lineages.append(tuple(self.records))
        self._bring_back(leader)

    def recreate(self) -> None:
        if self.away is not None:
            self.join()
        delete_topic(self.cluster, self.name)
        self._create()

    def _partition(self) -> PartitionInfo:
        return describe_topics(self.cluster, [self.name])[0].partitions[0]

    def _bring_back(self, broker_id: int) -> None:
        bring_back(self.cluster, broker_id)
        inspect_and_elect(self.cluster)
        catch_up(self.cluster.of(self.topic), self.topic, 0, broker_id)
        assert len(self._partition().isr) == 2


class LineageReader:
    """The records that one reader has seen of a TaggedLog, from offset 0 on, and the truncations that it reported."""

    def __init__(self, log: TaggedLog) -> None:
        self.log = log
        self.seen: list[Tag] = []
        self.reports = 0

    def saw(self, tags: Iterable[Tag]) -> None:
        """The next records that the reader returned, in order."""
        for tag in tags:
            assert tag.offset == len(self.seen), f"{tag} comes after {len(self.seen)} records: {self.seen[-3:]}"
            self.seen.append(tag)
        read = tuple(self.seen)
        lineages = [lineage for lineage in self.log.lineages if lineage[: len(read)] == read]
        assert lineages or not read, f"no lineage begins with {read}"

    def reported(self, offset: int) -> None:
        """The reader reported that from `offset` on the log has, or will have, other records than it has read."""
        assert offset < len(self.seen), f"{offset} is not below what was read: {len(self.seen)}"
        assert self.seen[:offset] == self.log.records[:offset], f"the log parts from what was read below {offset}"
        assert self.seen[offset] not in self.log.records, f"{self.seen[offset]} is in the log still"
        del self.seen[offset:]
        self.reports += 1

    def is_up_to_date(self) -> None:
        """The reader claims that there is nothing more to read, and nothing to report."""
        assert self.seen == self.log.records
