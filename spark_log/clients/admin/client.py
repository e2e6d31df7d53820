"""`Admin` has the methods, keyword names and results of kafka-python 3's KafkaAdminClient that spark-log supports."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from kafka import KafkaAdminClient
from kafka.errors import KafkaConfigurationError, UnsupportedVersionError

from spark_log.clients.admin.access_calls import AccessCalls
from spark_log.clients.admin.admin_settings import UNSUPPORTED, AdminSettings
from spark_log.clients.admin.configs import ConfigCalls
from spark_log.clients.admin.groups import GroupCalls
from spark_log.clients.admin.partitions import PartitionCalls
from spark_log.clients.admin.share_groups import ShareGroupCalls
from spark_log.clients.admin.topics import TopicCalls
from spark_log.clients.admin.transactions import TransactionCalls
from spark_log.clients.client_settings import parse_settings
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster

if TYPE_CHECKING:
    from spark_log.maintenance.report import Report


class Admin(TopicCalls, ConfigCalls, PartitionCalls, GroupCalls, ShareGroupCalls, TransactionCalls, AccessCalls):
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

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in UNSUPPORTED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def refuse(*_: Any, **__: Any) -> Any:
            raise UnsupportedVersionError(f"{name}: spark-log does not have it: {UNSUPPORTED[name]}")

        return refuse
