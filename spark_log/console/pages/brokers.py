"""Page `/brokers`, with the brokers, their log dirs, the balance, the reassignments in progress, and the gateways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.clients.admin.partitions import space_of_log_dirs
from spark_log.cluster.brokers import LogDirStatus
from spark_log.cluster.lease import lease_status
from spark_log.console.routes import Call, View
from spark_log.errors import redact
from spark_log.gateway.live_gateways import LiveGateway, read_live_gateways
from spark_log.replication.controller.balance import Load
from spark_log.replication.controller.reassignment_rows import list_all_reassignments

_SHOWN_MAX = 50


@dataclass(frozen=True)
class LogDirRow:
    """A log dir.

    `bytes` is the size of the readable segments of its replicas. `free_bytes` and `size_bytes` are those of its file
    system, or None if it is not a folder of this host.
    """

    log_dir_id: int
    uri: str
    online: bool
    failure: str | None
    replicas: int
    leaders: int
    bytes: int
    free_bytes: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class BrokerRow:
    """A broker.

    `preferred` is the number of partitions of which it is the preferred leader. `imbalance_percent` is the share of
    these that another broker leads. `records_deviation_percent` and `bytes_deviation_percent` are the deviations from
    the mean of all brokers.
    """

    broker_id: int
    rack: str | None
    alive: bool
    served: bool
    holder: str | None
    lease_left_ms: int | None
    leaders: int
    preferred: int
    replicas: int
    records: int
    bytes: int
    imbalance_percent: float
    records_deviation_percent: float
    bytes_deviation_percent: float
    log_dirs: Sequence[LogDirRow]


@dataclass(frozen=True)
class SkewRow:
    """A partition that is far above the mean of its topic. `ratio` is its size divided by the mean."""

    topic: str
    partition: int
    records: int
    bytes: int
    ratio: float


@dataclass(frozen=True)
class ReassignmentRow:
    topic: str
    partition: int
    replicas: Sequence[int]
    target: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]
    bytes_left: int
    began_ms: int


@dataclass(frozen=True)
class Brokers:
    """The content of the page.

    `controller` and `coordinator` are the holders of the leases, or None if no process holds the lease.
    """

    controller: str | None
    coordinator: str | None
    brokers: Sequence[BrokerRow]
    skewed: Sequence[SkewRow]
    reassignments: int
    first_reassignments: Sequence[ReassignmentRow]
    gateways: Sequence[LiveGateway]


def _facts(call: Call) -> Brokers:
    store = call.cluster.store
    snapshot, balance = call.snapshot(), call.snapshots.balance.get()
    coordinator = lease_status(store, "coordinator")
    found = {broker.broker_id: broker for broker in balance.brokers}
    spaces = space_of_log_dirs([log_dir for broker in snapshot.brokers for log_dir in broker.log_dirs])
    brokers = []
    for status in snapshot.brokers:
        own = found.get(status.broker_id)
        load = own.load if own else Load()
        loads = own.log_dirs if own else {}
        brokers.append(
            BrokerRow(
                status.broker_id,
                status.rack,
                status.alive,
                status.served,
                status.holder,
                status.lease_left_ms,
                status.leaders,
                load.preferred,
                load.replicas,
                load.records,
                load.bytes,
                own.imbalance_percent if own else 0.0,
                own.records_deviation_percent if own else 0.0,
                own.bytes_deviation_percent if own else 0.0,
                [
                    _log_dir(call, each, loads.get(each.log_dir_id, Load()), spaces[each.log_dir_id])
                    for each in status.log_dirs
                ],
            )
        )
    skewed = [
        SkewRow(skew.tp.topic, skew.tp.partition, skew.records, skew.bytes, skew.ratio)
        for skew in balance.skewed
        if call.sees(skew.tp.topic)
    ]
    reassignments = [
        ReassignmentRow(
            tp.topic, tp.partition, progress.replicas, progress.reassignment.target, progress.adding, progress.removing,
            progress.bytes_left, progress.began_ms,
        )
        for tp, progress in list_all_reassignments(call.cluster).items()
        if call.sees(tp.topic)
    ]  # fmt: skip
    return Brokers(
        snapshot.controller,
        coordinator.holder if coordinator.left_ms else None,
        brokers,
        skewed[:_SHOWN_MAX],
        len(reassignments),
        reassignments[:_SHOWN_MAX],
        store.read(lambda connection: read_live_gateways(store, connection)),
    )


def _log_dir(call: Call, status: LogDirStatus, load: Load, space: Mapping[str, int]) -> LogDirRow:
    return LogDirRow(
        status.log_dir_id,
        redact(status.uri),
        status.online,
        None if status.failure is None else redact(status.failure) if call.role.sees_all else "failed",
        status.replicas,
        load.leaders,
        load.bytes,
        *(None if space[name] < 0 else space[name] for name in ("usable_bytes", "total_bytes")),
    )


VIEWS = (View("/brokers", "brokers.html", _facts, title="Brokers"),)
