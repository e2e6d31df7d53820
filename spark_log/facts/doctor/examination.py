"""Examines a cluster: reads the facts of each check, and applies its rules. It writes only trial files."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import COORDINATOR, read_lease
from spark_log.cluster.log_dir import LogDirInfo
from spark_log.cluster.names import is_internal
from spark_log.cluster.security.users import list_credentials
from spark_log.cluster.store_directory import ADDING, StoreInfo, find_stores
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    SparkLogError,
    StorageUnavailableError,
    StoreChangedError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    redact,
)
from spark_log.facts.doctor import cluster_rules, file_rules, machine, settings_rules, store_rules, stores
from spark_log.facts.doctor.bounded_checks import Check, run_checks
from spark_log.facts.doctor.findings import Finding, Severity, error
from spark_log.facts.doctor.host_rules import HOSTS, check_hosts
from spark_log.facts.doctor.log_dir_rules import LOG_DIR, check_log_dir
from spark_log.facts.doctor.log_dirs import local_path, measure
from spark_log.facts.doctor.version_rules import CHECK as VERSIONS
from spark_log.facts.doctor.version_rules import check_versions
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, PartitionFacts, read_cluster
from spark_log.facts.metrics.history import DAY_MS, HOUR_MS, Kind, read_series, read_task_runs
from spark_log.facts.transactions import describe_open_transactions, find_unfinished
from spark_log.metadata import store_schema, tables
from spark_log.metadata.address import Address
from spark_log.metadata.store import Store
from spark_log.process import begin
from spark_log.tables.publication import check_publication

CHECK_S_MAX = 10.0
"""The default limit of time for opening the store, and again for all other checks together."""

_DATA_STORE_SHARE = 0.1
"""The share of the limit for which each check of a data store retries. Four checks run one after the other, so the
error of a store that does not answer is known within the limit.
"""
_TRIED_AGE_S = 60
"""A table that lacks records for longer than this is published on trial, to find the reason."""
_TRIED_MAX = 5

MoreChecks = Callable[[Cluster], Sequence[Check]]


def examine(
    address_text: str, topics: Collection[str] = (), limit_s: float = CHECK_S_MAX, more: MoreChecks = lambda _: ()
) -> list[Finding]:
    """Return the findings of all checks, for a cluster address as the user gave it. With `topics`, the checks of topics
    are limited to these. `more` returns further checks of an opened cluster. The examination takes at most 2 * limit_s.

    Raises InvalidConfigurationError for an invalid address.
    """
    address = Address.parse(address_text)
    versions = begin(lambda: check_versions(machine.read_versions()), "spark-log-doctor-versions")
    opening: list[Finding] = []
    cluster: Cluster | None = None
    log_dirs: list[LogDirInfo] = []
    data_stores: list[StoreInfo] = []
    try:
        opened = begin(partial(_open, address, limit_s), "spark-log-doctor-store")
        cluster, log_dirs, data_stores, finding = opened.result(limit_s)
        opening.append(finding)
    except TimeoutError:
        late = "look at the server and the network: it hangs. A longer limit: --timeout SECONDS"
        opening.append(error(store_rules.STORE, f"the metadata store gives no answer in {limit_s:g} s", late))
    except Exception as failure:
        opening.append(store_rules.store_failure(failure))
    first = [Check(VERSIONS, versions.result, Severity.NOTE)]
    if address.folder is not None:
        first.append(Check(store_rules.STORE_FOLDER, partial(_check_folder, address.folder)))
    if address.hosts:
        first.append(Check(HOSTS, partial(_check_hosts, address, limit_s / 2), Severity.WARNING))
    if cluster is None:
        return opening + run_checks([*first, *_file_checks(address_text, address)], limit_s)
    with cluster:
        checks = _checks(address_text, cluster, log_dirs, data_stores, topics, limit_s)
        return opening + run_checks([*first, *checks, *more(cluster)], limit_s)


def _open(address: Address, limit_s: float) -> tuple[Cluster | None, list[LogDirInfo], list[StoreInfo], Finding]:
    """Open the cluster without an upgrade of its store, and read its log dirs and data stores. The cluster is None if
    this version cannot use the store as it is.
    """
    store = Store(address)
    try:
        store.timeout_ms_max = 0.2 * limit_s * 1000
        finding = _check_schema(store)
        if finding.severity is Severity.OK:
            cluster = Cluster(store, upgrades=False)
            data_stores = [] if store.sqlite else [info for info in store.read(find_stores) if info.state != ADDING]
            return cluster, list(cluster.log_dirs().values()), data_stores, finding
    except BaseException:
        store.close()
        raise
    store.close()
    return None, [], [], finding


def _check_schema(store: Store) -> Finding:
    with store.fence.lifted():
        revision, usable = store.read(_revision)
    return store_rules.check_schema(revision, tables.SCHEMA_REVISION, machine.own_version(), usable=usable)


def _check_schema_of(info: StoreInfo, timeout_ms: int) -> list[Finding]:
    """Check the schema of a data store, which another process may have to upgrade before `Cluster.at` opens it."""
    store = Store(Address.parse(info.address_to_open()))
    store.timeout_ms_max = timeout_ms
    try:
        return [_check_schema(store)]
    finally:
        store.close()


def _revision(connection: sa.Connection) -> tuple[str | None, bool]:
    """Return the store's revision, and whether this version may use the store as it is."""
    revision = store_schema.revision_of(connection)
    return revision, revision is not None and store_schema.is_usable(connection, revision)


def _checks(
    address_text: str,
    cluster: Cluster,
    log_dirs: Sequence[LogDirInfo],
    data_stores: Sequence[StoreInfo],
    topics: Collection[str],
    limit_s: float,
) -> list[Check]:
    store = cluster.store
    folder = store.address.folder
    growth = begin(partial(_growth, cluster), "spark-log-doctor-growth")
    asking_store: list[Check] = [
        Check(store_rules.STORE, partial(_check_store, store, folder)),
        Check(store_rules.CLOCK, lambda: [store_rules.check_clock(*stores.measure_clock(store))]),
        Check(settings_rules.CLUSTER_SETTINGS, partial(_check_settings, store, data_stores)),
        Check("cluster", partial(_check_cluster, cluster, topics)),
        Check(cluster_rules.TRANSACTIONS, partial(_check_transactions, cluster)),
        Check(file_rules.CLEAN_UP, lambda: [file_rules.check_retired(stores.read_retired(cluster))]),
    ]
    for info in data_stores:
        asking_store += _data_store_checks(cluster, info, limit_s)
    asking_log_dirs = [
        Check(f"{LOG_DIR} {info.log_dir_id}", partial(_check_log_dir, info, growth.result, limit_s / 2))
        for info in log_dirs
    ]
    return [
        *asking_log_dirs,
        *(replace(check, lane=check.lane or "store") for check in asking_store),
        *(_data_store_hosts(info, limit_s / 2) for info in data_stores),
        Check(file_rules.PERMISSIONS, partial(_check_modes, address_text, cluster, log_dirs), Severity.NOTE),
        Check(cluster_rules.TABLES, partial(_check_tables, cluster, topics, limit_s / 2)),
        Check(cluster_rules.TASKS, partial(_check_tasks, cluster), Severity.NOTE),
    ]


def _data_store_checks(cluster: Cluster, info: StoreInfo, limit_s: float) -> list[Check]:
    """Return the checks of a data store. A store that has to be upgraded first has a finding of its schema only."""
    timeout_ms = int(_DATA_STORE_SHARE * limit_s * 1000)

    def view() -> Cluster:
        opened = cluster.at(info.store_id, timeout_ms=timeout_ms)
        opened.store.timeout_ms_max = timeout_ms
        return opened

    checks: dict[str, Callable[[], list[Finding]]] = {
        store_rules.SCHEMA: lambda: _check_schema_of(info, timeout_ms),
        store_rules.STORE: lambda: _check_store(view().store, None),
        store_rules.CLOCK: lambda: [store_rules.check_clock(*stores.measure_clock(view().store))],
        file_rules.CLEAN_UP: lambda: [file_rules.check_retired(stores.read_retired(view()))],
    }
    subject = f"store {info.name}"
    return [Check(name, partial(_if_usable, check), lane=subject, subject=subject) for name, check in checks.items()]


def _if_usable(check: Callable[[], list[Finding]]) -> list[Finding]:
    with contextlib.suppress(UnsupportedVersionError):
        return check()
    return []


def _data_store_hosts(info: StoreInfo, limit_s: float) -> Check:
    def check() -> list[Finding]:
        address = Address.parse(info.address_to_open())
        return _check_hosts(address, limit_s) if address.hosts else []

    return Check(HOSTS, check, Severity.WARNING, subject=f"store {info.name}")


def _file_checks(address_text: str, address: Address) -> list[Check]:
    return [
        Check(
            file_rules.PERMISSIONS,
            lambda: file_rules.check_modes(machine.read_modes(address_text, address.folder, [], has_users=False)),
            Severity.NOTE,
        )
    ]


def _check_folder(folder: Path) -> list[Finding]:
    return store_rules.check_folder(stores.measure_folder(folder)) if folder.is_dir() else []


def _check_hosts(address: Address, limit_s: float) -> list[Finding]:
    from spark_log.facts.doctor.hosts import measure_hosts  # imports psycopg, which SQLite does not need

    return check_hosts(measure_hosts(address, limit_s))


def _check_store(store: Store, folder: Path | None) -> list[Finding]:
    if folder is not None:
        return store_rules.check_sqlite(stores.measure_sqlite(store, folder))
    return store_rules.check_postgres(stores.measure_postgres(store))


def _check_log_dir(info: LogDirInfo, growth: Callable[[float], float | None], wait_s: float) -> list[Finding]:
    facts = measure(info)
    with contextlib.suppress(SparkLogError, OSError):  # the history is in log dirs, of which another may hang
        facts = replace(facts, grows=growth(wait_s))
    return check_log_dir(facts)


def _growth(cluster: Cluster) -> float | None:
    """Return the bytes per second by which the log has grown in the last day, or None without history or growth."""
    now_ms = cluster.store.now().wall_ms
    series = read_series(cluster, Kind.CLUSTER, from_ms=now_ms - DAY_MS, to_ms=now_ms, step_ms=HOUR_MS)
    samples = [(at_ms, size) for at_ms, size in zip(series.times_ms, series.values["bytes"], strict=True) if size]
    if len(samples) < 2:
        return None
    (first_ms, first), (last_ms, last) = samples[0], samples[-1]
    return (last - first) * 1000 / (last_ms - first_ms) if last > first else None


def _check_modes(address_text: str, cluster: Cluster, log_dirs: Sequence[LogDirInfo]) -> list[Finding]:
    local = [Path(path) for info in log_dirs if (path := local_path(info)) is not None]
    has_users = bool(list_credentials(cluster.store))
    return file_rules.check_modes(machine.read_modes(address_text, cluster.store.address.folder, local, has_users))


def _check_settings(store: Store, data_stores: Sequence[StoreInfo]) -> list[Finding]:
    states = {info.name: info.state for info in data_stores}
    return settings_rules.check_cluster(store.settings, store.read(store_schema.read_overrides), states)


def _check_transactions(cluster: Cluster) -> list[Finding]:
    open_, unfinished = describe_open_transactions(cluster), find_unfinished(cluster)
    return cluster_rules.check_transactions(open_, unfinished, cluster.store.now().wall_ms)


def _check_cluster(cluster: Cluster, names: Collection[str]) -> list[Finding]:
    snapshot = read_cluster(cluster)
    chosen = _chosen(snapshot, names)
    topic_names = {topic.name for topic in chosen}
    now = cluster.store.clock
    controller, coordinator = cluster.store.read(
        lambda c: (read_lease(c, "controller", now(c)), read_lease(c, COORDINATOR, now(c)))
    )
    return [
        *cluster_rules.check_coordinator(
            controller,
            coordinator,
            snapshot.needs_coordinator,
            stores.accepts_promotions(cluster.store),
        ),
        *cluster_rules.check_brokers(snapshot),
        *settings_rules.check_topics([topic for topic in chosen if not is_internal(topic.name)], len(snapshot.brokers)),
        *_check_partitions(cluster, snapshot, [p for p in snapshot.partitions if p.topic in topic_names]),
        *cluster_rules.check_groups(snapshot, topic_names),
        *cluster_rules.check_share_groups(snapshot, topic_names),
    ]


def _check_partitions(
    cluster: Cluster, snapshot: ClusterSnapshot, partitions: Sequence[PartitionFacts]
) -> list[Finding]:
    first = next((p for p in partitions if p.replicas and cluster_rules.lacks_files(p)), None)
    missing = None
    if first is not None:
        with contextlib.suppress(SparkLogError, OSError):  # it is an example: without it, the findings are complete
            missing = stores.find_missing_file(cluster, snapshot.topics[first.topic_id], first)
    return cluster_rules.check_partitions(partitions, missing)


def _chosen(snapshot: ClusterSnapshot, names: Collection[str]) -> list[Topic]:
    """Return the topics of these names, or all. Raises UnknownTopicOrPartitionError for an unknown one."""
    topics = {topic.name: topic for topic in snapshot.topics.values()}
    for name in names:
        if name not in topics:
            raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic; `spark-log topic list` shows all")
    return [topics[name] for name in names] if names else list(topics.values())


def _check_tables(cluster: Cluster, names: Collection[str], limit_s: float) -> list[Finding]:
    snapshot = read_cluster(cluster)
    topics = {topic.topic_id: topic for topic in _chosen(snapshot, names)}
    by_name = {topic.name: topic for topic in topics.values()}
    behind = cluster_rules.tables_behind(snapshot, topics.keys(), _TRIED_AGE_S)
    oldest = sorted(behind, key=lambda table: -table.age_ms)
    tried = dict.fromkeys([table.topic for table in oldest[:_TRIED_MAX]] + _largest(snapshot, by_name))
    trials = {
        name: begin(partial(_try_publication, cluster, by_name[name]), "spark-log-doctor-publication") for name in tried
    }
    until_s = clock.monotonic_s() + limit_s
    failures = {name: _failure(trial, until_s) for name, trial in trials.items()}
    reasons = {name: _one_line(failure) for name, failure in failures.items() if failure is not None}
    found = [(replace(table, reason=reasons.get(table.topic)), behind[table]) for table in oldest]
    changed = {name: reasons[name] for name, failure in failures.items() if isinstance(failure, StoreChangedError)}
    late = [table for table, stale in found if (stale or table.reason is not None) and table.topic not in changed]
    return [*cluster_rules.check_tables(late), *map(store_rules.store_changed, list(changed.values())[:1])]


def _try_publication(cluster: Cluster, topic: Topic) -> None:
    check_publication(cluster.of(topic), topic)


def _largest(snapshot: ClusterSnapshot, names: Collection[str]) -> list[str]:
    """Return the users' topics with the most records. After a restore of the store, their tables are ahead of the log,
    and `tables_behind` does not find them.
    """
    records = {name: 0 for name in names if not is_internal(name)}
    for partition in snapshot.partitions:
        if partition.topic in records:
            records[partition.topic] += partition.high_watermark - partition.log_start_offset
    return sorted(records, key=lambda name: -records[name])[:_TRIED_MAX]


def _failure(trial: "Future[None]", until_s: float) -> Exception | None:
    """Return the error of a trial publication, or None."""
    try:
        trial.result(max(0.0, until_s - clock.monotonic_s()))
    except TimeoutError:
        return StorageUnavailableError("its log dir does not answer")
    except Exception as failure:  # of the table format too
        return failure
    return None


def _one_line(failure: Exception) -> str:
    return " ".join(redact(str(failure)).split())


def _check_tasks(cluster: Cluster) -> list[Finding]:
    now_ms = cluster.store.now().wall_ms
    newest = {}
    for run in reversed(read_task_runs(cluster, from_ms=now_ms - HOUR_MS)):
        newest[run.task] = run
    return cluster_rules.check_tasks(newest.values())
