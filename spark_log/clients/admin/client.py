"""`Admin` has the methods, keyword names and results of kafka-python 3's KafkaAdminClient that spark-log supports."""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import KafkaConfigurationError, KafkaTimeoutError, UnsupportedVersionError
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from spark_log import clock
from spark_log.clients.admin import configs, groups, partitions, transactions
from spark_log.clients.admin import topics as on_topics
from spark_log.clients.admin.access_calls import AccessCalls
from spark_log.clients.admin.admin_settings import UNSUPPORTED, AdminSettings
from spark_log.clients.admin.share_groups import ShareGroupCalls
from spark_log.clients.client_settings import check_number, parse_settings
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import list_topics
from spark_log.groups.share.administration import list_groups_with_configs
from spark_log.ids import TopicPartition

if TYPE_CHECKING:
    from spark_log.maintenance.report import Report


class Admin(AccessCalls, ShareGroupCalls):
    """Manages topics, configs, offsets, groups and transactions of a cluster.

    >>> admin = Admin(cluster="/data/log")                                     # doctest: +SKIP
    >>> admin.create_topics({"flights": {"num_partitions": 4}})                # doctest: +SKIP

    `bootstrap_servers` is an alias of `cluster`. Errors are instances of both kafka-python's and spark-log's classes
    (see clients.kafka_errors). A feature of Kafka that spark-log lacks raises UnsupportedVersionError, as with an old
    broker.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = KafkaAdminClient.DEFAULT_CONFIG

    def __init__(self, **configs: Any) -> None:
        address, settings = parse_settings(AdminSettings, configs, self.DEFAULT_CONFIG, KafkaConfigurationError)
        self.config = {"bootstrap_servers": address, **vars(settings)}
        with kafka_errors():
            self._cluster = Cluster.open(address)
            self._cluster.store.timeout_ms_max = settings.request_timeout_ms

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cluster.close()

    # topics ------------------------------------------------------------------------------------------------------

    @kafka_errors()
    def list_topics(self) -> list[str]:
        return [topic.name for topic in list_topics(self._cluster)]

    @kafka_errors()
    def describe_topics(self, topics: Iterable[str | uuid.UUID] | None = None) -> list[dict[str, Any]]:
        """Return a dict for each topic, by default for all: its partitions with leader, replicas and ISR. A topic that
        does not exist has `error_code` 3.
        """
        return on_topics.describe_topics(self._cluster, topics)

    @kafka_errors()
    def create_topics(
        self,
        new_topics: Any,
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
        wait_for_metadata: bool = False,
    ) -> dict[str, Any]:
        """Create topics: names, NewTopic objects, or {name: {num_partitions, replication_factor, configs}}. A number -1
        means one.

        With `raise_errors`, raises the first error, such as TopicAlreadyExistsError, when all topics have been tried;
        otherwise returns error codes. A created topic has leaders at once, so `wait_for_metadata` has no effect.
        """
        _check_timeout(timeout_ms)
        if validate_only and wait_for_metadata:
            raise ValueError("validate_only and wait_for_metadata are mutually exclusive")
        return on_topics.create_topics(
            self._cluster, new_topics, validate_only=validate_only, raise_errors=raise_errors
        )

    def wait_for_topics(self, topic_names: Iterable[str], timeout_ms: float = 10_000) -> None:
        """Wait until all these topics exist. Raises KafkaTimeoutError with the names of those that do not."""
        wanted = set(topic_names)
        deadline = clock.monotonic_s() + timeout_ms / 1000
        while True:
            seen = self._cluster.store.changes.current()
            missing = sorted(wanted - set(self.list_topics()))
            left = deadline - clock.monotonic_s()
            if not missing:
                return
            if left <= 0:
                raise KafkaTimeoutError(f"Topics not ready after {timeout_ms}ms: {missing}")
            self._cluster.store.changes.wait(seen, min(left, 0.1))

    @kafka_errors()
    def delete_topics(
        self, topics: Iterable[str | uuid.UUID], timeout_ms: int | None = None, raise_errors: bool = True
    ) -> dict[str, Any]:
        """Delete topics (names or UUIDs). With `raise_errors`, raises the first error, such as
        UnknownTopicOrPartitionError, when all topics have been tried; otherwise returns error codes.
        """
        _check_timeout(timeout_ms)
        return on_topics.delete_topics(self._cluster, topics, raise_errors=raise_errors)

    @kafka_errors()
    def create_partitions(
        self,
        topic_partitions: Mapping[str, Any],
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> dict[str, Any]:
        """Add partitions, given {topic: total number of partitions, NewPartitions or {'count': total number}}. Manual
        assignments are ignored. With `raise_errors`, raises UnknownTopicOrPartitionError, InvalidPartitionsError or
        InvalidReplicationFactorError; otherwise returns error codes.
        """
        _check_timeout(timeout_ms)
        return on_topics.create_partitions(
            self._cluster, topic_partitions, validate_only=validate_only, raise_errors=raise_errors
        )

    @kafka_errors()
    def delete_records(
        self,
        records_to_delete: Mapping[Any, int],
        timeout_ms: int | None = None,
        partition_leader_id: int | None = None,
    ) -> dict[Any, dict[str, int]]:
        """Delete the records before {TopicPartition: offset}, in all partitions or in none; -1 is the high watermark.

        Returns the new log start offset of each partition as `low_watermark`. Raises OffsetOutOfRangeError,
        UnknownTopicOrPartitionError, or PolicyViolationError if cleanup.policy has no delete.
        """
        _check_timeout(timeout_ms)
        return on_topics.delete_records(self._cluster, records_to_delete)

    @kafka_errors()
    def list_partition_offsets(
        self, topic_partition_specs: Mapping[Any, Any], isolation_level: Any = None, timeout_ms: int | None = None
    ) -> dict[Any, OffsetAndTimestamp]:
        """Return the offset for an OffsetSpec or a timestamp in ms, by TopicPartition; all are of the same moment.

        The results are the same in both isolation levels. UnknownTopicOrPartitionError names a partition that does not
        exist.
        """
        _check_timeout(timeout_ms)
        return on_topics.list_partition_offsets(self._cluster, topic_partition_specs)

    # configs -----------------------------------------------------------------------------------------------------

    @kafka_errors()
    def describe_configs(
        self,
        config_resources: Iterable[ConfigResource],
        include_synonyms: bool = False,
        config_filter: Any = "modified",
    ) -> dict[str, dict[str, dict[str, Any]]]:
        """Return {'topic', 'group' or 'broker': {name: {config: {'value', 'config_source', …}}}}, by default only of
        configs that are not at their defaults. A resource of type BROKER, with any name, means the whole cluster. A
        group need not exist.

        Raises UnknownTopicOrPartitionError.
        """
        return configs.describe_configs(self._cluster, config_resources, config_filter)

    @kafka_errors()
    def alter_configs(
        self,
        config_resources: Sequence[ConfigResource],
        validate_only: bool = False,
        raise_on_unknown: bool = True,
        incremental: bool | None = None,
    ) -> dict[str, dict[str, str]]:
        """Set configs; return {'topic', 'group' or 'broker': {name: 'OK' or the error}}. BROKER with any name is the
        cluster.

        Values are texts or (AlterConfigOp, text). With `incremental=False` the other configs are reset. With
        `raise_on_unknown`, raises ValueError for a config that does not exist.
        """
        return configs.alter_configs(
            self._cluster,
            config_resources,
            validate_only=validate_only,
            raise_on_unknown=raise_on_unknown,
            incremental=incremental,
        )

    @kafka_errors()
    def reset_configs(
        self,
        config_resources: Sequence[ConfigResource],
        validate_only: bool = False,
        raise_on_unknown: bool = True,
        incremental: bool | None = None,
    ) -> dict[str, dict[str, str]]:
        """Reset the configs that the resources name, or all configs of a resource that names none, to defaults."""
        return configs.reset_configs(
            self._cluster, config_resources, validate_only=validate_only, raise_on_unknown=raise_on_unknown
        )

    @kafka_errors()
    def list_config_resources(self, resource_types: Iterable[Any] | None = None) -> dict[str, list[str]]:
        """Return {'topic': [names of all topics]}, and {'group': [ids]} of the groups that set configs, if any do."""
        groups_with_configs = list_groups_with_configs(self._cluster.store)
        return {"topic": self.list_topics(), **({"group": groups_with_configs} if groups_with_configs else {})}

    # the cluster -------------------------------------------------------------------------------------------------

    @kafka_errors()
    def describe_cluster(self) -> dict[str, Any]:
        """Return cluster id, controller and brokers. Every broker has host '' and port -1.

        The controller is the served broker that holds the lease. Without one it is the first live embedded broker,
        whose clients and coordinators do the controller's work; -1 if there is neither.
        """
        return partitions.describe_cluster(self._cluster)

    @kafka_errors()
    def describe_log_dirs(
        self, topic_partitions: Any = None, brokers: Iterable[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the log dirs of each broker, with the size and lag of each replica of {topic: partitions}, of a list
        of topics, or of all. Raises UnknownTopicOrPartitionError if the list names a topic that does not exist.
        """
        return partitions.describe_log_dirs(self._cluster, topic_partitions, brokers)

    @kafka_errors()
    def elect_leaders(
        self, election_type: Any, topic_partitions: Any = None, timeout_ms: int | None = None, raise_errors: bool = True
    ) -> Any:
        """Elect leaders (ElectionType.PREFERRED or UNCLEAN) for {topic: partitions}, a list of topics, or all.

        Returns an ElectLeadersResponse. Raises UnknownTopicOrPartitionError if the list names a topic that does not
        exist, and with `raise_errors` the first error of a partition, except ElectionNotNeededError.
        """
        _check_timeout(timeout_ms)
        return partitions.elect_leaders(self._cluster, election_type, topic_partitions, raise_errors=raise_errors)

    @kafka_errors()
    def alter_partition_reassignments(
        self, reassignments: Mapping[Any, Any], timeout_ms: int | None = None
    ) -> dict[Any, Any]:
        """Start reassignments, given {TopicPartition: broker ids, or None to cancel}. Return for each TopicPartition
        None if it was accepted, or the class of the error. Raises ValueError for an empty list of broker ids.

        A controller and served brokers, or `spark-log partition reassign`, complete them.
        """
        _check_timeout(timeout_ms)
        return partitions.alter_partition_reassignments(self._cluster, reassignments)

    @kafka_errors()
    def list_partition_reassignments(
        self, topic_partitions: Any = None, timeout_ms: int | None = None
    ) -> dict[Any, dict[str, list[int]]]:
        """Return the reassignments in progress of {topic: partitions}, of a list of TopicPartition, or of all."""
        _check_timeout(timeout_ms)
        return partitions.list_partition_reassignments(self._cluster, topic_partitions)

    @kafka_errors()
    def run_maintenance(
        self,
        tasks: Iterable[str] | None = None,
        *,
        topics: Collection[str] | None = None,
        now: bool = False,
        dry_run: bool = False,
    ) -> list["Report"]:
        """Run maintenance tasks, such as "compact" or "retention", as `spark-log maintenance` does; by default all
        tasks.

        `topics` limits the work to these topics. With `now` every inline tail is sealed, whatever its age. With
        `dry_run` nothing is changed, and the reports describe what a run would do. The first failure of a task is
        raised when all tasks have run. Raises InvalidConfigurationError and UnknownTopicOrPartitionError.
        """
        from spark_log.maintenance import run_tasks  # slow to import

        return list(run_tasks(self._cluster, tasks, topics=topics, now=now, dry_run=dry_run))

    # groups ------------------------------------------------------------------------------------------------------

    @kafka_errors()
    def list_groups(
        self,
        broker_ids: Any = None,
        states_filter: Iterable[Any] | None = None,
        types_filter: Iterable[Any] | None = None,
    ) -> list[dict[str, str]]:
        """Return group_id, protocol_type, group_state and group_type of each group."""
        return groups.list_groups(self._cluster, states_filter, types_filter)

    @kafka_errors()
    def describe_groups(
        self, group_ids: Iterable[str], group_coordinator_id: Any = None, include_authorized_operations: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return the state, assignor and members with their partitions by group. An unknown group has state Dead."""
        return groups.describe_groups(self._cluster, group_ids)

    @kafka_errors()
    def list_group_offsets(self, group_specs: Any) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return committed offsets of a group, of a list of groups, or of {group: partitions, or None for all}."""
        return groups.list_group_offsets(self._cluster, group_specs)

    @kafka_errors()
    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[Any, OffsetAndMetadata], group_coordinator_id: Any = None
    ) -> dict[Any, type[Exception]]:
        """Commit offsets of a group without live members; return each partition's error class, or NoError."""
        return groups.alter_group_offsets(self._cluster, group_id, offsets)

    @kafka_errors()
    def reset_group_offsets(
        self, group_id: str, offset_specs: Mapping[Any, Any], group_coordinator_id: Any = None
    ) -> dict[Any, dict[str, Any]]:
        """Commit an OffsetSpec, OffsetTimestamp or offset for each TopicPartition, clamped to the readable offsets.

        In a group with live members, nothing is written and each partition has UnknownMemberIdError. Raises
        UnknownTopicOrPartitionError, and writes nothing, if a topic is deleted meanwhile.
        """
        return groups.reset_group_offsets(self._cluster, group_id, offset_specs)

    @kafka_errors()
    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Any], group_coordinator_id: Any = None
    ) -> dict[Any, type[Exception]]:
        """Delete committed offsets of a group; return each partition's error class, or NoError."""
        return groups.delete_group_offsets(self._cluster, group_id, partitions)

    @kafka_errors()
    def delete_groups(self, group_ids: Iterable[str], group_coordinator_id: Any = None) -> dict[str, str]:
        """Delete groups; return 'OK' or the name of the error for each."""
        return groups.delete_groups(self._cluster, group_ids)

    @kafka_errors()
    def remove_group_members(
        self, group_id: str, members: Iterable[Any], group_coordinator_id: Any = None
    ) -> dict[str, type[Exception]]:
        """Remove each MemberToRemove; return {member id or instance id: NoError}. If one is not a member, none is
        removed and the error is raised.
        """
        return groups.remove_group_members(self._cluster, group_id, members)

    # transactions and producers ----------------------------------------------------------------------------------

    @kafka_errors()
    def list_transactions(
        self,
        broker_ids: Any = None,
        producer_id_filters: Iterable[int] | None = None,
        state_filters: Iterable[Any] | None = None,
        duration_filter_ms: int | None = None,
        transactional_id_pattern: str | None = None,
    ) -> dict[int, list[Any]]:
        """Return {-1: the TransactionListing of each transactional id}, because no broker coordinates transactions."""
        return transactions.list_transactions(
            self._cluster, producer_id_filters, state_filters, duration_filter_ms, transactional_id_pattern
        )

    @kafka_errors()
    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, Any]:
        """Return {transactional id: TransactionDescription}. Raises TransactionalIdNotFoundError for an unknown id."""
        return transactions.describe_transactions(self._cluster, transactional_ids)

    @kafka_errors()
    def find_hanging_transactions(
        self, broker_ids: Any = None, max_transaction_timeout_ms: int = 900_000
    ) -> list[dict[str, Any]]:
        """Return the transactions that are open for longer than their own time-out, or than the given time and five
        minutes more.

        They do not delay readers. A coordinator, or `spark-log maintenance transactions`, aborts those after their
        time-out.
        """
        return transactions.find_hanging_transactions(self._cluster, max_transaction_timeout_ms)

    @kafka_errors()
    def abort_transaction(self, spec: Any) -> None:
        """Abort the transaction of kafka-python's AbortTransactionSpec: the whole transaction, in all its partitions.

        The producer is not fenced: its next call raises TransactionAbortableError, and after an abort it can continue.
        Raises ProducerFencedError if the epoch is not current, InvalidTxnStateError without an open transaction there.
        """
        transactions.abort_transaction(self._cluster, spec)

    @kafka_errors()
    def describe_producers(self, partitions: Iterable[Any], broker_id: int | None = None) -> dict[Any, Any]:
        """Return {TopicPartition: PartitionProducerState} of idempotent producers and of those with an open
        transaction.

        The start offset of an open transaction is the log end offset: it would begin there if it was committed now.
        UnknownTopicOrPartitionError names a partition that does not exist.
        """
        return transactions.describe_producers(self._cluster, partitions)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in UNSUPPORTED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def refuse(*_: Any, **__: Any) -> Any:
            raise UnsupportedVersionError(f"{name}: spark-log does not have it: {UNSUPPORTED[name]}")

        return refuse


def _check_timeout(timeout_ms: object) -> None:
    if timeout_ms is not None:
        check_number("timeout_ms", timeout_ms, 0, whole=False)
