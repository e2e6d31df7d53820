"""Runs elections and reassignments and describes log dirs, with kafka-python's arguments and results."""

import contextlib
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any

import sqlalchemy as sa
from kafka.errors import ElectionNotNeededError, KafkaStorageError
from kafka.protocol.admin import ElectionType, ElectLeadersResponse
from kafka.structs import TopicPartition as KafkaTopicPartition

from spark_log.clients.admin.admin_settings import check_timeout
from spark_log.clients.admin.outcomes import error_fields, outcome_of, raise_first
from spark_log.clients.kafka_errors import kafka_error, kafka_errors
from spark_log.cluster.brokers import BrokerStatus, LogDirStatus, list_brokers
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import lease_status
from spark_log.cluster.log_dir import ANSWER_S_MAX, LogDir
from spark_log.cluster.topics import find_topics, unknown_topic
from spark_log.errors import SparkLogError, redact
from spark_log.ids import TopicPartition
from spark_log.process import ask_in_thread
from spark_log.replication.controller.balance import ReplicaFacts, load_replicas, replicas_of_data_stores
from spark_log.replication.controller.controller import LEASE
from spark_log.replication.controller.reassignment_rows import list_all_reassignments
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.controller.requested_elections import elect


def describe_log_dirs(
    cluster: Cluster,
    replicas: Iterable[ReplicaFacts],
    chosen: Collection[TopicPartition] | None,
    broker_ids: Iterable[int] | None,
) -> list[dict[str, Any]]:
    """Return [{'broker', 'log_dirs': [{'log_dir', 'error_code', 'topics', 'total_bytes', 'usable_bytes',
    'is_cordoned'}]}], with the replicas of the chosen partitions; None means all.

    The size of a replica is the size of its files; `offset_lag` counts the offsets that it lacks below the high
    watermark.
    """
    by_dir: dict[int, list[ReplicaFacts]] = {}
    for facts in replicas:
        if chosen is None or facts.tp in chosen:
            by_dir.setdefault(facts.log_dir_id, []).append(facts)
    asked = None if broker_ids is None else set(broker_ids)
    brokers = [each for each in list_brokers(cluster) if asked is None or each.broker_id in asked]
    spaces = space_of_log_dirs([log_dir for broker in brokers for log_dir in broker.log_dirs])
    return [
        {
            "broker": broker.broker_id,
            "log_dirs": [
                {
                    "error_code": 0 if log_dir.online else KafkaStorageError.errno,
                    "log_dir": redact(cluster.absolute(log_dir.uri)),
                    "topics": _by_topic(by_dir.get(log_dir.log_dir_id, [])),
                    **spaces[log_dir.log_dir_id],
                    "is_cordoned": False,
                }
                for log_dir in broker.log_dirs
            ],
        }
        for broker in brokers
    ]


def _controller_id(cluster: Cluster, brokers: list[BrokerStatus]) -> int:
    """Return the served broker whose process holds the controller's lease. If there is none, return the first live
    embedded broker: its clients, or a coordinator, do the controller's work. Without either, return -1.
    """
    lease = lease_status(cluster.store, LEASE)
    process = (lease.holder or "").rpartition("-")[0]  # the holder is host-process-random
    held = [b.broker_id for b in brokers if lease.left_ms and b.lease_left_ms and b.holder == process]
    embedded = [b.broker_id for b in brokers if not b.served and b.alive]
    return next(iter([*held, *embedded]), -1)


def _by_topic(replicas: list[ReplicaFacts]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for facts in replicas:
        topics.setdefault(facts.tp.topic, []).append(
            {
                "partition_index": facts.tp.partition,
                "partition_size": facts.file_bytes,
                "offset_lag": facts.offset_lag,
                "is_future_key": False,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


def space_of_log_dirs(log_dirs: Sequence[LogDirStatus]) -> dict[int, dict[str, int]]:
    """Return the total and free bytes of each log dir's volume, asking all volumes at once. -1 means unknown: the log
    dir is offline, hangs, or is no local folder.
    """

    def ask(uri: str) -> dict[str, int]:
        folder = LogDir(uri)
        if not folder.local:
            return unknown
        usage = shutil.disk_usage(folder.location(""))
        return {"total_bytes": usage.total, "usable_bytes": usage.free}

    unknown = {"total_bytes": -1, "usable_bytes": -1}
    spaces = {each.log_dir_id: unknown for each in log_dirs}
    answers = {
        each.log_dir_id: ask_in_thread("spark-log-space", each.uri, partial(ask, each.uri))
        for each in log_dirs
        if each.online
    }
    wait(answers.values(), ANSWER_S_MAX)
    for log_dir_id, answer in answers.items():
        with contextlib.suppress(SparkLogError, OSError):  # a TimeoutError is an OSError
            spaces[log_dir_id] = answer.result(0)
    return spaces


def _chosen(connection: sa.Connection, topic_partitions: Any) -> list[TopicPartition]:
    """Return the partitions of {topic: partitions}, of a list of topics, or of all topics for None."""
    if isinstance(topic_partitions, Mapping):
        return [TopicPartition(name, number) for name, numbers in topic_partitions.items() for number in numbers]
    topics = find_topics(connection)
    names = sorted(topics) if topic_partitions is None else list(topic_partitions)
    for name in names:
        if name not in topics:
            raise unknown_topic(connection, name)
    return [TopicPartition(name, number) for name in names for number in range(topics[name].partition_count)]


class PartitionCalls:
    """The methods of Admin for the cluster, its log dirs, elections and reassignments."""

    _cluster: Cluster

    @kafka_errors()
    def describe_cluster(self) -> dict[str, Any]:
        """Return cluster id, controller and brokers. Every broker has host '' and port -1.

        The controller is the served broker that holds the controller's lease. If there is none, it is the first live
        embedded broker, whose clients and coordinators do the controller's work. Without either, it is -1.
        """
        brokers = list_brokers(self._cluster)
        return {
            "cluster_id": self._cluster.cluster_id,
            "controller_id": _controller_id(self._cluster, brokers),
            "brokers": [
                {"broker_id": b.broker_id, "host": "", "port": -1, "rack": b.rack, "is_fenced": not b.alive}
                for b in brokers
            ],
        }

    @kafka_errors()
    def describe_log_dirs(
        self, topic_partitions: Any = None, brokers: Iterable[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the log dirs of each broker, with the size and lag of each replica of {topic: partitions}, of a list
        of topics, or of all. Raises UnknownTopicOrPartitionError if the list names a topic that does not exist.
        """
        chosen, replicas = self._cluster.store.read(lambda c: (_chosen(c, topic_partitions), load_replicas(c)))
        replicas += replicas_of_data_stores(self._cluster)
        requested = None if topic_partitions is None else set(chosen)
        return describe_log_dirs(self._cluster, replicas, requested, brokers)

    @kafka_errors()
    def elect_leaders(
        self, election_type: Any, topic_partitions: Any = None, timeout_ms: int | None = None, raise_errors: bool = True
    ) -> Any:
        """Elect leaders (ElectionType.PREFERRED or UNCLEAN) for {topic: partitions}, a list of topics, or all.

        Returns an ElectLeadersResponse. Raises UnknownTopicOrPartitionError if the list names a topic that does not
        exist, and with `raise_errors` the first error of a partition, except ElectionNotNeededError.
        """
        check_timeout(timeout_ms)
        unclean = ElectionType(election_type) is ElectionType.UNCLEAN
        chosen = self._cluster.store.read(lambda connection: _chosen(connection, topic_partitions))
        outcomes = elect(self._cluster, chosen, unclean=unclean)
        errors = {tp: None if error is None else kafka_error(error) for tp, error in outcomes.items()}
        if raise_errors:
            raise_first(error for error in errors.values() if not isinstance(error, ElectionNotNeededError))
        topic_result = ElectLeadersResponse.ReplicaElectionResult
        results: dict[str, list[Any]] = {}
        for tp, error in sorted(errors.items()):
            one = topic_result.PartitionResult(partition_id=tp.partition, **error_fields(error))
            results.setdefault(tp.topic, []).append(one)
        return ElectLeadersResponse(
            version=2,
            throttle_time_ms=0,
            error_code=0,
            replica_election_results=[
                topic_result(topic=name, partition_result=found) for name, found in results.items()
            ],
        )

    @kafka_errors()
    def alter_partition_reassignments(
        self, reassignments: Mapping[Any, Any], timeout_ms: int | None = None
    ) -> dict[Any, Any]:
        """Start reassignments, given {TopicPartition: broker ids, or None to cancel}. Return for each TopicPartition
        None if its reassignment was accepted, or the class of the error. Raises ValueError for an empty list of broker
        ids.

        A controller and served brokers, or `spark-log partition reassign`, complete them.
        """
        check_timeout(timeout_ms)
        results: dict[Any, Any] = {}
        for partition, replicas in reassignments.items():
            target = None if replicas is None else list(replicas)
            if target is not None and not target:
                raise ValueError(f"Replica list for {partition} must be non-empty; use None to cancel a reassignment.")
            if target is not None and not all(isinstance(broker_id, int) for broker_id in target):
                raise ValueError(f"Replica list for {partition} must be int broker_ids.")
            tp = TopicPartition(partition[0], partition[1])
            _, error = outcome_of(begin_reassignments, self._cluster, {tp: target})
            results[KafkaTopicPartition(*tp)] = None if error is None else type(error)
        return results

    @kafka_errors()
    def list_partition_reassignments(
        self, topic_partitions: Any = None, timeout_ms: int | None = None
    ) -> dict[Any, dict[str, list[int]]]:
        """Return the reassignments in progress of {topic: partitions}, of a list of TopicPartition, or of all."""
        check_timeout(timeout_ms)
        if isinstance(topic_partitions, Mapping):
            topic_partitions = [(name, number) for name, numbers in topic_partitions.items() for number in numbers]
        chosen = None if topic_partitions is None else {tuple(given) for given in topic_partitions}
        return {
            KafkaTopicPartition(*tp): {
                "replicas": list(status.replicas),
                "adding_replicas": list(status.adding),
                "removing_replicas": list(status.removing),
            }
            for tp, status in list_all_reassignments(self._cluster).items()
            if chosen is None or tp in chosen
        }
