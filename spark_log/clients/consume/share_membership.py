"""Manages a share consumer's membership in its group: subscription, heartbeats, assignment."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Mapping

from kafka.structs import TopicPartition

from spark_log.clients.consume.background import Background
from spark_log.clients.consume.share_settings import ShareConsumerSettings
from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    IllegalStateError,
    SparkLogError,
    UnknownMemberIdError,
)
from spark_log.groups.consumer.rules import JOINING, TopicFacts
from spark_log.groups.share.members import ShareHeartbeat, leave_share_group, share_heartbeat
from spark_log.groups.share.start_lookups import StartLookups
from spark_log.log.partitions.partition_rows import Key


class ShareMembership:
    """The membership of one consumer. The background thread calls `keep_alive`; the thread that holds the
    consumer's lock calls the others.
    """

    def __init__(self, cluster: Cluster, settings: ShareConsumerSettings, background: Background) -> None:
        self.member_id = str(uuid.uuid4())
        self.topics: frozenset[str] = frozenset()
        """The subscription. `join` reports a new one."""
        self.assigned: dict[Key, str] = {}
        self.partitions: dict[Key, TopicPartition] = {}
        """The partitions of all assignments so far."""
        self._cluster, self._settings, self._background = cluster, settings, background
        self._epoch = JOINING
        self._may_have_joined = False
        """Whether a heartbeat was sent since the last `leave`: its answer may be lost."""
        self._reported: frozenset[str] | None = None
        """The subscription in the last heartbeat."""
        self._heartbeat_lock = threading.Lock()
        self._start_lookups = StartLookups(cluster, self._heartbeat_soon)

    def join(self) -> None:
        """Join, or report another subscription. The background thread sends the other heartbeats."""
        if self._epoch == JOINING or self._reported != self.topics:
            first = self._epoch == JOINING and self._reported is None
            with self._heartbeat_lock:
                self._heartbeat()
            if first:
                self._background.call_every(self._interval_s, self.keep_alive)

    def _heartbeat(self) -> None:
        """Send a heartbeat. The caller holds `_heartbeat_lock`, so that no heartbeat joins again after `leave`."""
        topics, self._may_have_joined = self.topics, True
        news = None if self._reported == topics and self._epoch != JOINING else topics
        heartbeat = ShareHeartbeat(
            self._settings.group_id, self.member_id, self._epoch, news, None, self._settings.client_id,
            socket.gethostname(),
        )  # fmt: skip
        try:
            answer = share_heartbeat(self._cluster, heartbeat)
        except (UnknownMemberIdError, FencedMemberEpochError, GroupIdNotFoundError):
            if heartbeat.epoch == JOINING:
                raise
            self._epoch = JOINING  # the session ended: the next poll joins again
            return
        self._epoch, self._reported = answer.epoch, topics
        self._interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self._assign(answer.assignment)
        self._start_lookups.submit(self._settings.group_id, answer.by_time)

    def _heartbeat_soon(self) -> None:
        with contextlib.suppress(IllegalStateError):  # the consumer is closed
            self._background.submit(self.keep_alive)

    def _assign(self, assignment: Mapping[str, TopicFacts]) -> None:
        assigned = {
            (facts.topic_id, number): name
            for name, facts in assignment.items()
            for number in range(facts.partition_count)
        }
        self.partitions |= {key: TopicPartition(name, key[1]) for key, name in assigned.items()}
        self.assigned = assigned

    def keep_alive(self) -> None:
        """Send a heartbeat if the consumer is a member. The background thread calls this."""
        with self._heartbeat_lock:
            if self.topics and self._epoch != JOINING:
                self._heartbeat()

    def leave(self) -> None:
        """Leave the group if the consumer is a member."""
        with self._heartbeat_lock:
            if self._may_have_joined:
                self._may_have_joined = False
                with contextlib.suppress(SparkLogError):  # the session ends by itself then
                    leave_share_group(self._cluster.store, self._settings.group_id, self.member_id)
            self._epoch = JOINING
            self.assigned = {}

    def close(self) -> None:
        """Leave the group for good, if the consumer is a member."""
        self._start_lookups.close()
        self.leave()
