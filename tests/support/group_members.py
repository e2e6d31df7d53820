"""Consumers without records: what they hold, and how they come to rest."""

import time

from spark_log.groups.membership import GroupMember, MemberSettings

LONG_MS = 600_000
"""A session that does not end during a test."""


class Reader:
    """A member with what it holds, which does what it is told at once."""

    def __init__(self, cluster, topics=("t",), group="g", instance=None, session_ms=LONG_MS, assignors=("range",)):
        self.topics = list(topics)
        settings = MemberSettings("reader", "here", instance, session_ms, tuple(assignors))
        self.member = GroupMember(cluster, group, settings)
        self.held = frozenset()
        self.answer = None

    def beat(self):
        self.answer = self.member.heartbeat(self.topics, self.held)
        self.held = self.answer.partitions
        return self.answer

    @property
    def numbers(self):
        return sorted(partition for _, partition in self.held)


def settle(*readers, timeout_s=30):
    """Heartbeats until all have all; never is a partition held twice."""
    deadline = time.monotonic() + timeout_s
    while True:
        generations = set()
        for reader in readers:
            generations.add(reader.beat().generation)
            held = [p for other in readers for p in other.held]
            assert len(held) == len(set(held)), "two hold the same partition"
        if all(reader.answer.complete for reader in readers) and len(generations) == 1:
            return readers
        assert time.monotonic() < deadline, [(reader.member.member_id, reader.answer) for reader in readers]


def until(condition, store, timeout_s=30):
    """Wait for a condition on what is in the store."""
    deadline = time.monotonic() + timeout_s
    while True:
        look = store.changes.current()
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline
        store.changes.wait(look, 0.05)
