"""Shows brokers with their log dirs, the balance, running reassignments, and the gateways (page `/brokers`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.clients.admin.partitions import space_of_log_dirs
from spark_log.cluster.brokers import LogDirStatus
from spark_log.cluster.lease import lease_status
from spark_log.console.listing import row_of
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
            row_of(
                BrokerRow,
                status,
                preferred=load.preferred,
                replicas=load.replicas,
                records=load.records,
                bytes=load.bytes,
                imbalance_percent=own.imbalance_percent if own else 0.0,
                records_deviation_percent=own.records_deviation_percent if own else 0.0,
                bytes_deviation_percent=own.bytes_deviation_percent if own else 0.0,
                log_dirs=[
                    _log_dir(call, each, loads.get(each.log_dir_id, Load()), spaces[each.log_dir_id])
                    for each in status.log_dirs
                ],
            )
        )
    skewed = [row_of(SkewRow, skew, **skew.tp._asdict()) for skew in balance.skewed if call.sees(skew.tp.topic)]
    reassignments = [
        row_of(ReassignmentRow, progress, target=progress.reassignment.target, **tp._asdict())
        for tp, progress in list_all_reassignments(call.cluster).items()
        if call.sees(tp.topic)
    ]
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
    free, size = (None if space[name] < 0 else space[name] for name in ("usable_bytes", "total_bytes"))
    return row_of(
        LogDirRow,
        status,
        uri=redact(status.uri),
        failure=None if status.failure is None else redact(status.failure) if call.role.sees_all else "failed",
        leaders=load.leaders,
        bytes=load.bytes,
        free_bytes=free,
        size_bytes=size,
    )


VIEWS = (View("/brokers", "brokers.html", _facts, title="Brokers"),)
