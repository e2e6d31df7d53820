"""Checks the partitions, brokers, tables, transactions and groups of a cluster. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from spark_log.cluster.lease import LeaseStatus
from spark_log.facts.doctor import limits
from spark_log.facts.doctor.findings import Finding, error, note, ok, or_ok, warning
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, PartitionFacts
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.facts.share_partitions import SharePartition
from spark_log.facts.transactions import TransactionDescription, TransactionListing
from spark_log.ids import TopicId
from spark_log.tables.lag_measurement import lag_bound_ms
from spark_log.text import count_of, duration_of, some_of, time_of

PARTITIONS, BROKERS, COORDINATOR, TASKS = "partitions", "brokers", "coordinator", "tasks"
TABLES, TRANSACTIONS, GROUPS, SHARE_GROUPS = "tables", "transactions", "groups", "share groups"


@dataclass(frozen=True)
class StaleTable:
    """A table whose publication is behind. `reason` is the error of a trial publication, or None without an error."""

    topic: str
    target: str
    records: int
    age_ms: int
    reason: str | None


@dataclass(frozen=True)
class MissingFile:
    """The segment file [base_offset, end_offset) that replicas lack. The longest replica ends at `base_offset`."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    location: str


def lacks_files(facts: PartitionFacts) -> bool:
    """Whether the partition has no leader although all its log dirs are online: files are missing there."""
    return facts.leader is None and not facts.offline and facts.replicated_offset < facts.log_end_offset


def check_partitions(partitions: Sequence[PartitionFacts], missing: MissingFile | None = None) -> list[Finding]:
    """Check the partitions. `missing` is a missing file of a partition for which `lacks_files` is true."""
    # partitions of __consumer_offsets have no replicas
    replicated = [p for p in partitions if p.replicas]
    problems = chain(
        _missing_files([p for p in replicated if lacks_files(p)], missing), _partition_problems(replicated)
    )
    return or_ok(problems, PARTITIONS, f"{count_of(len(partitions), 'partition')}, all in sync")


def _missing_files(partitions: Sequence[PartitionFacts], missing: MissingFile | None) -> Iterator[Finding]:
    if not partitions:
        return
    file = "" if missing is None else (
        f", for example of {missing.topic}-{missing.partition} offsets {missing.base_offset:,} to"
        f" {missing.end_offset - 1:,}: {missing.location}"
    )  # fmt: skip
    yield error(
        PARTITIONS,
        f"{_listed(partitions)}: no leader, since files are missing in log dirs that are online{file}",
        "copy the files back that `spark-log store verify-files` names, and run `spark-log coordinator`, which elects"
        " leaders then. As a last resort, which loses records: spark-log topic delete-records TOPIC --before P=N, with"
        " N above the offsets of the missing files, keeps the records from N on; spark-log partition elect --unclean"
        " --topic TOPIC --partition P keeps those below the offsets of the missing files",
    )


def _partition_problems(partitions: Sequence[PartitionFacts]) -> Iterator[Finding]:
    offline = [p for p in partitions if p.leader is None and not lacks_files(p)]
    short = [p for p in partitions if p.leader is not None and p.in_sync < p.min_in_sync]
    behind = [p for p in partitions if p.leader is not None and p.min_in_sync <= p.in_sync < p.replicas]
    away = [p for p in partitions if p.leader is not None and p.leader != p.preferred_leader and not p.offline]
    if offline:
        yield error(
            PARTITIONS,
            f"{_listed(offline)}: no leader, since no in-sync replica is alive; they cannot be written",
            "bring back the log dirs and brokers that `spark-log broker list` shows as failed. As a last resort, which"
            " loses records: spark-log partition elect --unclean --topic TOPIC --partition N",
        )
    if short:
        yield error(
            PARTITIONS,
            f"{_listed(short)}: fewer in-sync replicas than min.insync.replicas; appends with acks=all are refused",
            "bring back the log dirs and brokers that `spark-log broker list` shows as failed, or move the replicas"
            " (`spark-log partition reassign`)",
        )
    if behind:
        yield warning(
            PARTITIONS,
            f"{_listed(behind)}: replicas are not in sync",
            "`spark-log broker list` shows failed log dirs and brokers; replicas catch up while a coordinator or a"
            " broker runs (`spark-log coordinator`)",
        )
    if away:
        yield note(
            PARTITIONS,
            f"{_listed(away)}: led by another broker than the preferred one",
            "spark-log partition elect --all",
        )


def check_brokers(snapshot: ClusterSnapshot) -> list[Finding]:
    alive = sum(broker.alive for broker in snapshot.brokers)
    return or_ok(_broker_problems(snapshot), BROKERS, f"{alive} of {count_of(len(snapshot.brokers), 'broker')} alive")


def _broker_problems(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    for broker in snapshot.brokers:
        if not broker.log_dirs:
            # a served broker cannot be added again
            repeat = "" if broker.served else f"repeat `spark-log broker add --id {broker.broker_id}`, or "
            yield warning(
                BROKERS,
                f"broker {broker.broker_id} has no log dir: its addition was interrupted",
                f"{repeat}`spark-log broker remove --id {broker.broker_id}`",
            )
        if broker.served and not broker.lease_left_ms:
            yield error(
                BROKERS,
                f"broker {broker.broker_id} is dead: no process serves it",
                f"spark-log broker start --id {broker.broker_id}; or, to let clients do its work, spark-log broker"
                f" embed --id {broker.broker_id}",
            )
        for log_dir in broker.log_dirs:
            if not log_dir.online:
                yield error(
                    BROKERS,
                    f"the controller has taken out log dir {log_dir.log_dir_id} of broker {broker.broker_id}"
                    f" ({count_of(log_dir.replicas, 'replica')}): {log_dir.failure or 'no reason recorded'}",
                    "correct the cause; the controller takes it back by itself once it can be read and written",
                )


def check_coordinator(
    controller: LeaseStatus, coordinator: LeaseStatus, needed: bool, accepts_promotions: bool = False
) -> list[Finding]:
    """Check the two leases. `needed` is whether a broker is served: then clients do not run the periodic tasks.
    `accepts_promotions` is whether store.promotion.accept is synchronous: only a coordinator accepts promotions.
    """
    missing = [each.name for each in (controller, coordinator) if each.holder is None or not each.left_ms]
    if not missing:
        return [ok(COORDINATOR, f"coordinator {coordinator.holder}, controller {controller.holder}")]
    if needed:
        return [
            error(
                COORDINATOR,
                f"no process is the {' or the '.join(missing)}: no elections, no maintenance",
                "start `spark-log coordinator`, and look at the logs of those that run",
            )
        ]
    if accepts_promotions:
        return [
            warning(
                COORDINATOR,
                f"no process is the {' or the '.join(missing)}: after a failover of the store nothing accepts it"
                " (store.promotion.accept=synchronous), so that clean-up and publication stop",
                "start `spark-log coordinator`, as a service that restarts",
            )
        ]
    return [
        note(
            COORDINATOR,
            f"no process is the {' or the '.join(missing)}: maintenance runs only in open clients",
            "run `spark-log coordinator` beside a cluster that lives long; it also records a history",
        )
    ]


def check_tasks(newest_runs: Collection[TaskRun]) -> list[Finding]:
    """Check the newest recorded run of each task."""
    failed = sorted((run for run in newest_runs if run.error is not None), key=lambda run: run.task)
    return or_ok(
        (
            warning(
                TASKS,
                f"task {run.task!r} failed at {time_of(run.start_ms)}: {run.error}",
                "correct the cause that the error names; the log of the coordinator has the details",
            )
            for run in failed
        ),
        TASKS,
        "no task of the coordinator has failed in the last hour",
    )


def tables_behind(
    snapshot: ClusterSnapshot, topic_ids: Collection[TopicId], tried_age_s: float
) -> dict[StaleTable, bool]:
    """Return the tables, without reasons, that lack records for longer than `tried_age_s` or than the limit for their
    bound. The value is whether that limit is exceeded.
    """
    behind: dict[StaleTable, bool] = {}
    for key, lag in snapshot.table_lags.items():
        if key.topic_id in topic_ids and key.topic_id in snapshot.topics:
            topic, age_ms = snapshot.topics[key.topic_id], snapshot.now_ms - lag.oldest_ms
            bound_ms = lag_bound_ms(topic, key.target)
            stale = bound_ms is not None and age_ms > limits.TABLE_LAG_BOUNDS_MAX * bound_ms + limits.TABLE_STALE_MS_MIN
            if stale or age_ms > tried_age_s * 1000:
                behind[StaleTable(topic.name, key.target, lag.records, age_ms, None)] = stale
    return behind


def check_tables(stale: Sequence[StaleTable]) -> list[Finding]:
    findings = (
        warning(
            TABLES,
            f"the {table.target} table of {table.topic} lacks {count_of(table.records, 'record')}, the oldest"
            f" {duration_of(table.age_ms)} old" + (f": {table.reason}" if table.reason else ""),
            "correct the cause that the error names"
            if table.reason
            else f"run a coordinator (`spark-log coordinator`), or `spark-log maintenance seal delta --now --topic"
            f" {table.topic}`",
        )
        for table in stale
    )
    return or_ok(findings, TABLES, "no table is late by more than twice its bound (delta.max.lag.ms) and 5 minutes")


def check_transactions(
    open_: Sequence[TransactionDescription], unfinished: Sequence[TransactionListing] = (), now_ms: int = 0
) -> list[Finding]:
    return or_ok(
        chain(_transaction_problems(open_), _unfinished_problems(unfinished, now_ms)),
        TRANSACTIONS,
        f"{count_of(len(open_), 'open transaction')}, none past its time-out",
    )


def _transaction_problems(open_: Sequence[TransactionDescription]) -> Iterator[Finding]:
    for each in open_:
        transaction = each.transaction
        long = (transaction.open_ms or 0) > limits.TRANSACTION_S_MAX * 1000
        if not (transaction.overdue or long):
            continue
        topics = sorted({pending.topic for pending in each.pending})
        why = f"past its time-out of {duration_of(transaction.timeout_ms)}" if transaction.overdue else "not ended"
        yield warning(
            TRANSACTIONS,
            f"the transaction of {transaction.transactional_id!r} has been open for"
            f" {duration_of(transaction.open_ms or 0)},"
            f" {why}, with {count_of(transaction.batches, 'batch', 'batches')}"
            + (f" of {some_of(topics)}" if topics else ""),
            f"spark-log transaction abort {transaction.transactional_id}; or run `spark-log coordinator`, which aborts"
            " it after its time-out",
        )


def _unfinished_problems(unfinished: Sequence[TransactionListing], now_ms: int) -> Iterator[Finding]:
    for transaction in unfinished:
        # it was committed before its time-out: after that it could only be aborted
        since_ms = now_ms - (transaction.began_ms or 0) - transaction.timeout_ms
        if since_ms > limits.UNFINISHED_S_MAX * 1000:
            yield warning(
                TRANSACTIONS,
                f"the transaction of {transaction.transactional_id!r} has been committed for at least"
                f" {duration_of(since_ms)}, and its records are not in the log of store"
                f" {some_of(transaction.stores)} yet",
                "see the findings of the store; run `spark-log coordinator`, which completes it",
            )


def check_groups(snapshot: ClusterSnapshot, topics: Collection[str]) -> list[Finding]:
    starts = {(p.topic, p.partition): p.log_start_offset for p in snapshot.partitions}
    groups = [position for position in snapshot.groups if not position.share and position.topic in topics]
    lost: dict[str, list[str]] = {}
    slow: dict[str, float] = {}
    for position in groups:
        if position.committed < starts.get((position.topic, position.partition), 0):
            lost.setdefault(position.group, []).append(f"{position.topic}-{position.partition}")
        if (position.lag_s or 0) > limits.GROUP_LAG_S_MAX:
            slow[position.group] = max(slow.get(position.group, 0.0), position.lag_s or 0)
    findings = [
        warning(
            GROUPS,
            f"group {group!r}: retention removed records of {some_of(places)} before the group read them",
            f"raise retention.ms of the topic, then `spark-log group describe {group}`; `spark-log group reset"
            f" {group}` moves its offsets",
        )
        for group, places in lost.items()
    ] + [
        note(
            GROUPS,
            f"group {group!r} is {duration_of(int(seconds * 1000))} behind",
            f"`spark-log group describe {group}` shows its members and lag; if it falls further back, add members",
        )
        for group, seconds in slow.items()
    ]
    return or_ok(findings, GROUPS, f"{count_of(len({each.group for each in groups}), 'group')} within retention")


def check_share_groups(snapshot: ClusterSnapshot, topics: Collection[str]) -> list[Finding]:
    parts = [part for part in snapshot.share_partitions if part.topic in topics]
    return or_ok(
        _share_problems(parts, snapshot.record_locks),
        SHARE_GROUPS,
        f"{count_of(len({part.group for part in parts}), 'share group')}, none held up",
    )


def _share_problems(parts: Sequence[SharePartition], record_locks: Mapping[str, int]) -> Iterator[Finding]:
    for part in parts:
        if part.archiving:
            yield warning(
                SHARE_GROUPS,
                f"group {part.group!r} cannot write {count_of(part.archiving, 'dead letter')} of"
                f" {part.topic}-{part.partition}",
                f"`spark-log share config {part.group}` shows errors.deadletterqueue.topic.name: create that topic, or"
                " set errors.deadletterqueue.group.enable=true on it",
            )
        limit = record_locks.get(part.group)
        if limit is not None and part.unfinished >= limit:
            yield warning(
                SHARE_GROUPS,
                f"group {part.group!r} has {part.unfinished:,} unfinished records in {part.topic}-{part.partition}, and"
                f" acquires no more (share.partition.max.record.locks is {limit:,})",
                f"`spark-log share peek {part.group}` shows the records and their members; raise the config, or correct"
                " the members that do not acknowledge",
            )


def _listed(partitions: Sequence[PartitionFacts]) -> str:
    names = [f"{p.topic}-{p.partition}" for p in partitions]
    return f"{count_of(len(names), 'partition')} ({some_of(names)})"
