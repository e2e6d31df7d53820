"""Many members of a share group come and go: each record is accepted once, and no member starves."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_log.cluster.settings import alter_settings
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.looks import look
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from tests.support.share_members import ShareMember, set_lock_ms
from tests.support.topics import append, make

PARTITIONS, EACH = 16, 24
LOCK_MS = 500
THREADS, POLL_RECORDS = 4, 7
PASSED_OVER_MAX = 20
"""The number of polls in which a member gets nothing while others acquire records."""


@pytest.fixture
def jobs(cluster, log):
    """Topic t with EACH records in each partition, short locks, and many deliveries."""
    set_lock_ms(cluster, LOCK_MS)
    counts = ("group.share.max.delivery.count.limit", "group.share.delivery.count.limit")
    alter_settings(cluster, dict.fromkeys(counts, "100"))
    topic = make(cluster, "t", PARTITIONS)
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    for partition in range(PARTITIONS):
        append(log, topic, *(f"{partition}/{n}" for n in range(EACH)), partition=partition)


def is_finished(cluster):
    offers = look(cluster.store, "workers").offers.values()
    return len(offers) == PARTITIONS and all(offer.start_offset == EACH and offer.unfinished == 0 for offer in offers)


class Lives:
    """One thread that is one member after the other. Each acquires once, and ends in one of four ways."""

    def __init__(self, cluster, number, polls, turns):
        self.cluster, self.number, self.polls, self.turns = cluster, number, polls, turns
        self.accepted, self.lives, self.passed_over = [], 0, 0
        self.ways = set()
        self.chosen = random.Random(number)

    def run(self):
        while not is_finished(self.cluster):
            self._live()

    def _live(self):
        self.lives += 1
        member = ShareMember(self.cluster, member=f"m{self.number}-{self.lives}", polls=self.polls)
        passed_over = 0
        while True:
            turns = self.turns[0]
            if acquired := member.poll(POLL_RECORDS, timeout_s=0.1):
                break
            passed_over += self.turns[0] > turns
            if is_finished(self.cluster):
                return
        self.turns[0] += 1
        self.passed_over = max(self.passed_over, passed_over)
        # most often all is accepted, so that the records are finished soon
        way = self.chosen.choice(["accept"] * 8 + ["half", "release", "killed"])
        self.ways.add(way)
        if way == "release":
            member.acknowledge(acquired, AcknowledgeType.RELEASE)
        elif way != "killed":
            if way == "half":
                acquired = {key: ranges[:1] for key, ranges in acquired.items()}
            errors = member.acknowledge(acquired, AcknowledgeType.ACCEPT).errors
            for key, ranges in acquired.items():
                if errors[key] is None:
                    self.accepted += [(key[1], offset) for r in ranges for offset in range(r.first, r.end)]
        if way != "killed":
            member.leave()


def test_members_come_and_go(cluster, jobs):
    polls = [SharePolls(cluster, ShareReads(cluster)) for _ in range(2)]
    turns = [0]
    lives = [Lives(cluster, number, polls[number % 2], turns) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(Lives.run, lives))
    accepted = [place for each in lives for place in each.accepted]
    assert sorted(accepted) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]
    assert max(each.passed_over for each in lives) < PASSED_OVER_MAX
    assert sum(each.lives for each in lives) > 50 and {"accept", "killed"} <= set.union(*(each.ways for each in lives))


@pytest.mark.on_sqlite
def test_a_member_that_acquires_all_it_may_leaves_the_other_partitions_to_others(cluster, jobs):
    """Its turn goes on from partition to partition, so that no partition starves."""
    member = ShareMember(cluster)
    found = []
    for _ in range(PARTITIONS):
        acquired = member.poll(EACH)
        [(key, _)] = acquired.items()
        found.append(key[1])
        member.acknowledge(acquired, AcknowledgeType.RELEASE)
    assert sorted(found) == list(range(PARTITIONS))
