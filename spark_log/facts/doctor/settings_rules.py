"""Finds settings that contradict each other, or give up safety. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_log.cluster.store_directory import ACTIVE
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.facts.doctor import limits
from spark_log.facts.doctor.findings import Finding, error, note, or_ok, warning
from spark_log.ids import HOME_NAME
from spark_log.text import count_of, some_of

TOPIC_SETTINGS, CLUSTER_SETTINGS = "topic settings", "cluster settings"


@dataclass(frozen=True)
class Rule:
    """The finding for all topics that share one problem."""

    error: bool
    seen: str
    remedy: str


_SMALL_ISR = Rule(
    True,
    "min.insync.replicas is above the replication factor: appends with acks=all are refused",
    "spark-log topic alter TOPIC --config min.insync.replicas=N, or add replicas with `spark-log partition reassign`",
)
_NO_SPARE = Rule(
    False,
    "min.insync.replicas equals the replication factor: one lost log dir stops appends with acks=all",
    "spark-log topic alter TOPIC --config min.insync.replicas=N, with N below the replication factor",
)
_ONE_COPY = Rule(
    False,
    "min.insync.replicas is 1 with several replicas: a record may be acknowledged with one copy",
    "spark-log topic alter TOPIC --config min.insync.replicas=2",
)
_ONE_REPLICA = Rule(
    False,
    "the replication factor is 1, although the cluster has several brokers: a lost disk loses records",
    "add replicas with `spark-log partition reassign`, and create topics with --replication-factor 2 or 3",
)
_NOT_FORCED = Rule(
    False,
    "flush.messages is above 1: a power cut can lose acknowledged records",
    "spark-log topic alter TOPIC --config flush.messages=1",
)
_UNCLEAN = Rule(
    False,
    "unclean.leader.election.enable is true: an election may lose acknowledged records",
    "spark-log topic alter TOPIC --config unclean.leader.election.enable=false",
)


def check_topics(topics: Sequence[Topic], brokers: int) -> list[Finding]:
    """Check the configs of the topics. `brokers` is the number of brokers of the cluster."""
    named: dict[Rule, list[str]] = defaultdict(list)
    for topic in topics:
        for rule in _rules_of(topic, brokers):
            named[rule].append(topic.name)
    findings = (
        (error if rule.error else note)(
            TOPIC_SETTINGS,
            f"{count_of(len(names), 'topic')} ({some_of(names)}): {rule.seen}",
            rule.remedy.replace("TOPIC", names[0]) if len(names) == 1 else rule.remedy,
        )
        for rule, names in named.items()
    )
    return or_ok(findings, TOPIC_SETTINGS, f"{count_of(len(topics), 'topic')} without contradictions")


def _rules_of(topic: Topic, brokers: int) -> Iterator[Rule]:
    config, replicas = topic.config, topic.replication_factor
    if config.min_insync_replicas > replicas:
        yield _SMALL_ISR
    elif config.min_insync_replicas == replicas > 1:
        yield _NO_SPARE
    elif replicas > 1 and config.min_insync_replicas == 1:
        yield _ONE_COPY
    if replicas == 1 and brokers > 1:
        yield _ONE_REPLICA
    if config.flush_messages > 1:
        yield _NOT_FORCED
    if config.unclean_leader_election_enable:
        yield _UNCLEAN


def check_cluster(
    settings: ClusterSettings, stored: Mapping[str, str], data_stores: Mapping[str, str]
) -> list[Finding]:
    """Check the settings of the cluster. `stored` are those that differ from the defaults; `data_stores` has the state
    of each data store by name.
    """
    return or_ok(
        _cluster_problems(settings, data_stores),
        CLUSTER_SETTINGS,
        f"{count_of(len(stored), 'setting')} that differ from the defaults"
        + (f" ({some_of(sorted(stored))})" if stored else ""),
    )


def _cluster_problems(settings: ClusterSettings, data_stores: Mapping[str, str]) -> Iterable[Finding]:
    default = settings.topic_default_store
    if default != HOME_NAME and data_stores.get(default) != ACTIVE:
        yield warning(
            CLUSTER_SETTINGS,
            f"topic.default.store is {default}, which is {data_stores.get(default, 'no store')}: topics"
            " that are created without the name of a store, as by clients, are refused",
            "spark-log cluster config --unset topic.default.store",
        )
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        yield error(
            CLUSTER_SETTINGS,
            f"group.min.session.timeout.ms ({settings.group_min_session_timeout_ms}) is above"
            f" group.max.session.timeout.ms ({settings.group_max_session_timeout_ms}): no member can join",
            "spark-log cluster config --unset group.min.session.timeout.ms --unset group.max.session.timeout.ms",
        )
    if 2 * settings.group_consumer_heartbeat_interval_ms > settings.group_consumer_session_timeout_ms:
        yield warning(
            CLUSTER_SETTINGS,
            f"group.consumer.heartbeat.interval.ms ({settings.group_consumer_heartbeat_interval_ms}) is above half of"
            f" group.consumer.session.timeout.ms ({settings.group_consumer_session_timeout_ms}): one late heartbeat"
            " ends a membership",
            "spark-log cluster config --unset group.consumer.heartbeat.interval.ms"
            " --unset group.consumer.session.timeout.ms",
        )
    if settings.store_answer_timeout_ms <= limits.STORE_ANSWER_MS_MIN:
        yield warning(
            CLUSTER_SETTINGS,
            f"store.answer.timeout.ms ({settings.store_answer_timeout_ms}) is not above the"
            f" {limits.STORE_ANSWER_MS_MIN // 1000} s for which a statement may wait for a lock: clients end"
            " connections of a server that answers",
            "spark-log cluster config --unset store.answer.timeout.ms",
        )
    if settings.metrics_interval_ms == -1:
        yield note(
            CLUSTER_SETTINGS,
            "metrics.interval.ms is -1: there is no history of throughput, lag and failed tasks",
            "spark-log cluster config --unset metrics.interval.ms",
        )
