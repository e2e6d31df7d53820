"""Checks whether the metadata store keeps acknowledged records safely, and answers. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from spark_log.errors import (
    ClusterNotFoundError,
    DiskFullError,
    MetadataStoreUnavailableError,
    SparkLogError,
    UnsupportedStoreError,
    redact,
)
from spark_log.facts.doctor import limits
from spark_log.facts.doctor.findings import Finding, error, note, ok, or_ok, warning
from spark_log.text import bytes_of, count_of, duration_of

STORE, STORE_FOLDER, SCHEMA, CLOCK = "store", "store folder", "schema", "clock"


@dataclass(frozen=True)
class SqliteFacts:
    """`bytes` is the size of the database, and `log_bytes` that of its write-ahead log."""

    journal_mode: str
    synchronous: int
    bytes: int
    log_bytes: int


@dataclass(frozen=True)
class FolderFacts:
    """The folder of a SQLite store. `refused` are its files that this user cannot read and write. `free` and `size` are
    bytes of its file system.
    """

    folder: str
    read_only: bool
    refused: tuple[str, ...]
    free: int
    size: int


@dataclass(frozen=True)
class PostgresFacts:
    """Settings and activity of the server. `oldest_transaction_s` is the age of the oldest transaction of another
    session in this database, and `oldest_session` its process id and application; None if there is none.
    `synchronous_standbys` and `standbys` are numbers of connected standbys. Unless `sees_standbys`, the role does not
    see which of them are synchronous. `waiting_commits` is the number of sessions whose commit waits for a standby.
    `idle_slots` names the replication slots without a standby. `idle_slot_bytes` is the most write-ahead log that one
    of them holds back. `accepts_promotions` is whether store.promotion.accept is synchronous, in the cluster or in its
    coordinator. `identity_problem` says why the server is not the recorded one, or is None.
    """

    version: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    autovacuum: str
    connections: int
    max_connections: int
    oldest_transaction_s: float | None
    oldest_session: tuple[int, str] | None
    synchronous_standby_names: str
    synchronous_standbys: int
    standbys: int
    sees_standbys: bool
    transaction_id_age: int
    bytes: int
    waiting_commits: int = 0
    idle_slots: str = ""
    idle_slot_bytes: int = 0
    accepts_promotions: bool = False
    identity_problem: str | None = None


def store_changed(problem: str) -> Finding:
    """Return the finding for a store that seems to be an older copy, with the message of StoreChangedError."""
    return error(STORE, problem, "see what it lacks with `spark-log store status`, then `spark-log store accept`")


def store_failure(failure: Exception) -> Finding:
    """Return the finding for a store that cannot be opened or read."""
    text = redact(str(failure.args[0] if isinstance(failure, SparkLogError) and failure.args else failure))
    if isinstance(failure, UnsupportedStoreError) and "network file system" in text:
        remedy = "move the folder to a local disk, or create the cluster in PostgreSQL"
    elif isinstance(failure, UnsupportedStoreError):
        remedy = (
            "as a superuser of the server: ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; ALTER"
            " SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf(); also look at ALTER ROLE and ALTER DATABASE"
        )
    elif isinstance(failure, ClusterNotFoundError):
        remedy = (
            "correct --cluster or SPARK_LOG_CLUSTER; mount the disk; or restore the store from a backup"
            " (docs/guides/backup.md)"
        )
    elif isinstance(failure, DiskFullError):
        remedy = "free space on the disk of the metadata store; it is not that of the log dirs"
    elif isinstance(failure, PermissionError):
        remedy = "run as the user that owns the files of the cluster, or give this user its folder (chown -R)"
    elif isinstance(failure, MetadataStoreUnavailableError):
        remedy = (
            "start the server or correct its address; `pg_isready -h HOST -p PORT` tests it; nothing can be appended"
            " until it answers, and nothing that was acknowledged is lost"
        )
    else:
        remedy = "the message says what to correct; docs/reference/errors.md has each error"
    return error(STORE, f"the metadata store cannot be used: {' '.join(text.split())}", remedy)


def check_schema(revision: str | None, own_revision: str, spark_log: str, *, usable: bool) -> Finding:
    """Compare the store's revision with the one of this version, which may use the store as it is if `usable`."""
    if revision == own_revision:
        return ok(SCHEMA, f"revision {revision}, which spark-log {spark_log} uses")
    if usable:
        return ok(
            SCHEMA,
            f"revision {revision} of a newer version, beside which spark-log {spark_log} ({own_revision}) may run",
        )
    if revision is None:
        return error(SCHEMA, "the database has no cluster", "correct --cluster, or create one with `spark-log init`")
    if not revision.startswith("v"):
        return error(
            SCHEMA,
            f"revision {revision} is from before the first release, and cannot be upgraded",
            "create a new cluster with `spark-log init`, and copy the topics with the version that created the old one",
        )
    if _number(revision) > _number(own_revision):
        return error(
            SCHEMA,
            f"revision {revision} is newer than spark-log {spark_log}, which uses {own_revision}",
            "install the newer spark-log on this machine",
        )
    return warning(
        SCHEMA,
        f"revision {revision} is older than {own_revision}, which spark-log {spark_log} uses; not upgraded by this"
        " command",
        "back up the store, and run `spark-log status`, which upgrades it; older clients may be refused then",
    )


def check_clock(ahead_ms: float, uncertain_ms: float) -> Finding:
    """Check how far the store's clock is ahead of this machine's, measured to within `uncertain_ms`."""
    seen = f"the store's clock is {abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms >= 0 else 'behind'} this machine's"
    if abs(ahead_ms) - uncertain_ms <= limits.CLOCK_SKEW_MS_MAX:
        return ok(CLOCK, seen)
    return warning(
        CLOCK,
        f"{seen}: timestamps of records and retention then disagree",
        "run an NTP client on both machines: `timedatectl set-ntp true`, and look at `timedatectl status`",
    )


def check_sqlite(facts: SqliteFacts) -> list[Finding]:
    return or_ok(
        _sqlite_problems(facts),
        STORE,
        f"SQLite, {bytes_of(facts.bytes)}, journal_mode {facts.journal_mode}, synchronous {facts.synchronous},"
        f" write-ahead log {bytes_of(facts.log_bytes)}",
    )


def _sqlite_problems(facts: SqliteFacts) -> Iterator[Finding]:
    if facts.journal_mode != "wal" or facts.synchronous < 2:
        yield error(
            STORE,
            f"SQLite's journal_mode is {facts.journal_mode} and synchronous is {facts.synchronous}; expected wal and 2",
            "move the folder to a local file system that supports memory maps and locks",
        )
    if facts.log_bytes > limits.SQLITE_LOG_BYTES_MAX:
        yield warning(
            STORE,
            f"SQLite's write-ahead log has {bytes_of(facts.log_bytes)}: a process reads without an end",
            "find the process with `fuser -v metadata.sqlite` in the cluster's folder, and end its long read",
        )


def check_folder(facts: FolderFacts) -> list[Finding]:
    return or_ok(_folder_problems(facts), STORE_FOLDER, f"{facts.folder}: writable, {bytes_of(facts.free)} free")


def _folder_problems(facts: FolderFacts) -> Iterator[Finding]:
    if facts.read_only:
        yield error(
            STORE_FOLDER,
            f"the file system of {facts.folder} is read-only: nothing can be appended, no group commits offsets",
            f"look at `findmnt -T {facts.folder}` and `dmesg`: a disk with errors becomes read-only; then"
            " `mount -o remount,rw`",
        )
    elif facts.refused:
        yield error(
            STORE_FOLDER,
            f"this user cannot read and write {', '.join(facts.refused)} in {facts.folder}",
            f"run as the owner of the files, or give this user the folder: chown -R USER {facts.folder}",
        )
    share = facts.free / facts.size if facts.size else 1.0
    if share < limits.FREE_SHARE_LOW:
        empty = share < limits.FREE_SHARE_EMPTY
        yield (error if empty else warning)(
            STORE_FOLDER,
            f"the disk of metadata.sqlite has {bytes_of(facts.free)} free of {bytes_of(facts.size)} ({share:.0%})",
            "free space there: every append needs it",
        )


def check_postgres(facts: PostgresFacts) -> list[Finding]:
    return or_ok(
        _postgres_problems(facts),
        STORE,
        f"PostgreSQL {facts.version}, {bytes_of(facts.bytes)}, fsync {facts.fsync}, full_page_writes"
        f" {facts.full_page_writes}, synchronous_commit {facts.synchronous_commit}, {facts.connections} of"
        f" {facts.max_connections} connections, {count_of(facts.synchronous_standbys, 'synchronous standby')}",
    )


_MAKE_SYNCHRONOUS = (
    "with Patroni: patronictl edit-config -s synchronous_mode=true -s synchronous_mode_strict=true; else: ALTER SYSTEM"
    " SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()"
)


def _postgres_problems(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.identity_problem is not None:
        yield store_changed(facts.identity_problem)
    if facts.connections > limits.CONNECTIONS_SHARE_MAX * facts.max_connections:
        yield warning(
            STORE,
            f"{facts.connections} of {facts.max_connections} connections (max_connections) are in use",
            "raise max_connections (ALTER SYSTEM SET max_connections = N, then restart the server), or let clients"
            " share a gateway",
        )
    yield from _transaction_problems(facts)
    if facts.synchronous_standby_names and facts.standbys and not facts.sees_standbys:
        yield note(
            STORE,
            f"this role does not see whether one of the {count_of(facts.standbys, 'connected standby')} is synchronous"
            f" (synchronous_standby_names is {facts.synchronous_standby_names!r})",
            "as a superuser of the server: GRANT pg_monitor TO the role of the address",
        )
    elif facts.synchronous_standby_names and not facts.synchronous_standbys:
        yield error(
            STORE,
            f"synchronous_standby_names is {facts.synchronous_standby_names!r}, but no synchronous standby is connected"
            f" ({count_of(facts.standbys, 'other')}): every commit waits,"
            f" now {count_of(facts.waiting_commits, 'session')}",
            "start a standby that the setting names, and look at `SELECT * FROM pg_stat_replication`",
        )
    if facts.standbys and not facts.synchronous_standby_names:
        yield warning(
            STORE,
            f"replication to {count_of(facts.standbys, 'standby')} is asynchronous: a failover loses acknowledged"
            " records",
            _MAKE_SYNCHRONOUS,
        )
    if facts.accepts_promotions and not facts.synchronous_standby_names:
        yield warning(
            STORE,
            "store.promotion.accept is synchronous, but replication is not (synchronous_standby_names is empty): after"
            " a failover clean-up and publication wait for a person",
            _MAKE_SYNCHRONOUS,
        )
    if facts.synchronous_standbys and not facts.accepts_promotions:
        yield note(
            STORE,
            "store.promotion.accept is manual: after a failover clean-up and publication wait for a person",
            "if only synchronous standbys are promoted, as Patroni does: spark-log cluster config --set"
            " store.promotion.accept=synchronous",
        )
    if facts.idle_slot_bytes > limits.IDLE_SLOT_BYTES_MAX:
        yield warning(
            STORE,
            f"a replication slot without a standby ({facts.idle_slots}) holds back {bytes_of(facts.idle_slot_bytes)} of"
            " the write-ahead log, which may fill the disk of the server",
            "start the standby, or drop the slot: SELECT pg_drop_replication_slot(NAME); limit it with"
            " max_slot_wal_keep_size",
        )
    if facts.autovacuum != "on":
        yield note(
            STORE,
            "autovacuum is off: tables of the store grow",
            "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )


def _transaction_problems(facts: PostgresFacts) -> Iterator[Finding]:
    if (facts.oldest_transaction_s or 0) > limits.POSTGRES_TRANSACTION_S_MAX and facts.oldest_session:
        pid, application = facts.oldest_session
        open_for = duration_of(int((facts.oldest_transaction_s or 0) * 1000))
        yield warning(
            STORE,
            f"session {pid} ({application or 'no application_name'}) has had a transaction open for {open_for}: it may"
            " hold locks, and stops vacuum",
            f"end it if nothing needs it: SELECT pg_terminate_backend({pid})",
        )
    if facts.transaction_id_age > limits.WRAPAROUND_AGE_HIGH:
        critical = facts.transaction_id_age > limits.WRAPAROUND_AGE_CRITICAL
        yield (error if critical else warning)(
            STORE,
            f"the oldest transaction id is {facts.transaction_id_age:,} old; the server stops at about 2,100,000,000",
            "end old transactions, prepared transactions and unused replication slots, then run VACUUM (FREEZE)",
        )


def _number(revision: str) -> int:
    digits = revision.removeprefix("v")
    return int(digits) if digits.isascii() and digits.isdigit() else 0
