"""Begins topics by time (share.auto.offset.reset=by_duration) outside of heartbeats: a lookup by time reads files, and
may fail or hang, but a heartbeat must keep the session of its member alive.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import redact
from spark_log.groups.consumer import rows as group_rows
from spark_log.groups.consumer.rules import TopicFacts
from spark_log.groups.share import rows
from spark_log.groups.share.members import SHARE, lock_topics_to_read
from spark_log.groups.share.starts import find_starts, insert_starts
from spark_log.process import start_thread
from spark_log.remembered import BoundedDict

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000
_AGAIN_S = 30.0
"""The pause after a lookup that failed."""
_WAITING_MAX = 10_000
"""The number of topics that wait. The next heartbeats name the others again."""


def begin_by_time(cluster: Cluster, group_id: str, name: str, facts: TopicFacts) -> None:
    """Let a share group begin in all partitions of a topic that it reads for the first time. The next heartbeats assign
    the topic. Raises the errors of reading offsets by time; then the group does not read the topic.
    """
    store = cluster.store
    config, now = store.read(
        lambda connection: (
            rows.configs_of(rows.ask_configs(connection, group_id), store.settings),
            store.clock(connection),
        )
    )
    keys = {(facts.topic_id, number) for number in range(facts.partition_count)}
    starts = find_starts(cluster, group_id, {facts.topic_id: name}, keys, config, now)

    def write(connection: sa.Connection) -> None:
        readable = lock_topics_to_read(connection, {facts.topic_id})
        group = group_rows.read_group(connection, group_id, lock=True)
        if not readable or group is None or group.type != SHARE or rows.partitions_of(connection, group_id, readable):
            return
        insert_starts(connection, group_id, starts, store.clock(connection))

    store.transact(write, timeout_ms=_TIMEOUT_MS)


class StartLookups:
    """Begins topics by time, one after the other in a thread of its own. The groups take turns. Thread-safe."""

    def __init__(self, cluster: Cluster, begun: Callable[[], None] = lambda: None) -> None:
        """`begun` is called in the thread after a group has begun to read a topic."""
        self._cluster, self._begun = cluster, begun
        self._waiting: dict[str, dict[str, TopicFacts]] = {}
        """The topics of each group, in the order of their turns."""
        self._due_s: BoundedDict[tuple[str, int], float] = BoundedDict()
        """When a topic may be submitted again: never while it waits."""
        self._lock = threading.Lock()
        self._is_running = self._is_closed = False

    def submit(self, group_id: str, topics: Mapping[str, TopicFacts]) -> None:
        """Begin these topics soon, except those that wait, or whose last lookup failed a short time ago."""
        with self._lock:
            now_s, count = clock.monotonic_s(), sum(map(len, self._waiting.values()))
            for name, facts in topics.items():
                key = group_id, facts.topic_id
                if count < _WAITING_MAX and self._due_s.get(key, now_s) <= now_s:
                    self._due_s[key] = math.inf
                    self._waiting.setdefault(group_id, {})[name] = facts
                    count += 1
            if self._waiting and not self._is_running and not self._is_closed:
                self._is_running = start_thread(self._run, "spark-log-share-starts") is not None

    def close(self) -> None:
        """Begin no more topics. A lookup that runs is not waited for."""
        self._is_closed = True

    def _run(self) -> None:
        while (found := self._next()) is not None:
            group_id, name, facts = found
            again_s = 0.0
            try:
                begin_by_time(self._cluster, group_id, name, facts)
                self._begun()
            except Exception as error:  # the thread must not end
                again_s = _AGAIN_S
                if not self._is_closed:
                    reason = redact(str(error))
                    logger.warning("share group %r cannot begin to read topic %r: %s", group_id, name, reason)
            self._due_s[group_id, facts.topic_id] = clock.monotonic_s() + again_s

    def _next(self) -> tuple[str, str, TopicFacts] | None:
        """Return the next group and topic, or None at the end of the thread."""
        with self._lock:
            if not self._waiting or self._is_closed:
                self._is_running = False
                return None
            group_id = next(iter(self._waiting))
            topics = self._waiting.pop(group_id)
            name = next(iter(topics))
            facts = topics.pop(name)
            if topics:
                self._waiting[group_id] = topics  # the other groups come first
            return group_id, name, facts
