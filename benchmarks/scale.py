"""The cost of each operation as the log grows: `make bench-scale`.

Five axes: segments of one topic (10^3 to 10^6, hence up to 10^9 records), partitions of one topic (10^2 to 10^5),
topics (10 to 10^4), members of one group (10 to 10^4), and on PostgreSQL the partitions of a cluster with 16 stores
(10^4 to 10^6, each with 1,000 records a day, hence up to 10^9 records a day). At each size the same small amount of
work is measured: an append of one record, the plan of ten segments, a micro-batch of one record, a heartbeat, a
retention pass that drops ten segments, the Delta publication of one segment, and the periodic tasks of a coordinator
that has nothing to do, in ms of work per second. A curve is flat if the largest size costs at most 1.5 x the smallest.

The rows of the log are simulated (`benchmarks.scale_rows`): inserted into the store in bulk, consistent with what the
log would write, without segment files. Times are medians, of wall clock and of this process' CPU time: compare the
latter where other work runs on the machine. PostgreSQL's CPU time is not in it.
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from benchmarks import scale_rows as simulated
from benchmarks import setup
from benchmarks.machine import describe_machine
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import Topic, find_topic
from spark_log.config import ClusterSettings
from spark_log.facts.metrics.task_runs import TaskRunBuffer
from spark_log.groups.consumer import rows
from spark_log.groups.membership import ConsumerMembership, MemberSettings
from spark_log.ids import HOME, OffsetRange, TopicPartition
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.coordinator.lease_runner import PeriodicTaskContext
from spark_log.maintenance.coordinator.periodic_tasks import controller_tasks, coordinator_tasks, data_store_tasks
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.maintenance.upkeep_tasks import retain
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_task import ReadColumns
from spark_log.spark.datasource.read.stream_reader import StreamReader
from spark_log.tables.publication import publish

FLAT = 1.5
AXES = {
    "segments": (1_000, 10_000, 100_000, 1_000_000),
    "partitions": (100, 1_000, 10_000, 100_000),
    "topics": (10, 100, 1_000, 10_000),
    "members": (10, 100, 1_000, 10_000),
    "partitions of 16 stores": (10_000, 100_000, 1_000_000),
}
STORES = 16
_PARTITIONS = 100
"""Of each topic of a cluster with several stores."""
GROUP = "readers"
_ONCE_MS = 2_000
ONE = setup.records(pa.array([b"value"]), pa.array([b"key"]), time.time_ns() // 1_000_000)


@dataclass(frozen=True)
class Cost:
    """One point of a curve. Milliseconds: medians of wall clock and CPU."""

    store: str
    axis: str
    size: int
    what: str
    wall_ms: float
    cpu_ms: float


def main() -> int:
    arguments = _arguments()
    logging.disable(logging.WARNING)
    costs: list[Cost] = []
    for store in ("SQLite", "PostgreSQL"):
        if store not in arguments.stores or (store == "PostgreSQL" and arguments.postgresql is None):
            continue
        for axis in arguments.axes:
            if axis == "partitions of 16 stores" and store == "SQLite":
                continue  # it has one store
            sizes = [size for size in AXES[axis] if size <= arguments.max]
            for cost in Axis(store, axis, sizes, arguments).measure():
                costs.append(cost)
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps([asdict(each) for each in costs], indent=1))
                print(
                    f"{cost.store}, {cost.size:>9,} {cost.axis}: {cost.what}: {cost.wall_ms:.2f} ms"
                    f" (CPU {cost.cpu_ms:.2f})",
                    flush=True,
                )
    for axis in arguments.axes:
        Console(width=150).print(_table(axis, costs))
    Console(width=150).print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")
    if arguments.plot:
        from benchmarks.scale_plot import plot

        plot([asdict(cost) for cost in costs], Path(arguments.plot))
    return 0


class Axis:
    """One axis on one store: a cluster that grows from size to size."""

    def __init__(self, store: str, axis: str, sizes: list[int], arguments: argparse.Namespace) -> None:
        self.store, self.axis, self.sizes, self.arguments = store, axis, sizes, arguments

    def measure(self) -> Iterator[Cost]:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-log-bench-"))
            address = f"{folder}/cluster" if self.store == "SQLite" else self._fresh_database()
            cluster = stack.enter_context(Cluster.init(address, log_dir=f"{folder}/log-dir"))
            if self.axis == "partitions of 16 stores":
                for number in range(1, STORES):
                    add_store(cluster, f"store-{number}", self._fresh_database(f"_{number}"))
            before = 0
            for size in self.sizes:
                began_s = time.perf_counter()
                topic = self._grow(cluster, before, size)
                for store_id in cluster.store_ids():
                    simulated.analyze(cluster.at(store_id))
                print(f"{self.store}: {size:,} {self.axis} in {time.perf_counter() - began_s:.1f} s", flush=True)
                for what, (wall_ms, cpu_ms) in operations(cluster, address, topic, self.arguments.rounds):
                    yield Cost(self.store, self.axis, size, what, wall_ms, cpu_ms)
                before = size

    def _fresh_database(self, suffix: str = "") -> str:
        return setup.fresh_database(self.arguments.postgresql, f"scale_{self.axis.replace(' ', '_')}{suffix}")

    def _grow(self, cluster: Cluster, before: int, size: int) -> Topic:
        """Let the axis grow; returns the topic to measure."""
        if self.axis == "partitions of 16 stores":
            names = ["home", *(f"store-{number}" for number in range(1, STORES))]
            for name in names:
                if not before:
                    first = create_topic(cluster, name, _PARTITIONS, configs=simulated.CONFIGS, store=name)
                    simulated.add_published_segments(cluster, first, 1)
                of_store = (max(1, size // _PARTITIONS // STORES) for size in (before, size))
                simulated.add_topics(cluster, name, range(*of_store))
            if before:
                return _find(cluster, "measured")
            topic = create_topic(cluster, "measured", _PARTITIONS, configs=simulated.CONFIGS, store=names[-1])
            simulated.add_published_segments(cluster, topic, self.arguments.rounds + 1)  # more than retention drops
            simulated.add_members(cluster, f"{GROUP}-measured", topic, range(10))
            return topic
        if self.axis == "members":
            topic = _find(cluster, "grouped") if before else _topic(cluster, "grouped", max(self.sizes))
            if not before:
                simulated.add_published_segments(cluster, topic, 1)
            simulated.add_members(cluster, GROUP, topic, range(before, size))
            return topic
        if self.axis == "segments":
            topic = _find(cluster, "long") if before else _topic(cluster, "long", 4)
            simulated.add_published_segments(cluster, topic, (size - before) // 4)
        elif self.axis == "partitions":
            topic = _topic(cluster, f"wide-{size}", size)
            simulated.add_published_segments(cluster, topic, 1)
        else:
            topic = _find(cluster, "measured") if before else _topic(cluster, "measured", 1)
            if not before:
                # retention drops ten in each round of each size
                simulated.add_published_segments(cluster, topic, 10 * (self.arguments.rounds + 1) * len(self.sizes))
                simulated.add_published_segments(cluster, _topic(cluster, "one", 1), 2)
            simulated.add_topics(cluster, "one", range(before or 2, size))
        members = min(10, topic.partition_count)
        if not before or self.axis == "partitions":
            simulated.add_members(cluster, f"{GROUP}-{topic.name}", topic, range(members))
        return topic


def _topic(cluster: Cluster, name: str, partitions: int) -> Topic:
    topic = create_topic(cluster, name, partitions, configs=simulated.CONFIGS)
    assert topic is not None
    return topic


def _find(cluster: Cluster, name: str) -> Topic:
    return cluster.store.read(lambda connection: find_topic(connection, name))


def operations(cluster: Cluster, address: str, topic: Topic, rounds: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """Operations and their costs, in (wall, CPU) milliseconds."""
    view = cluster.of(topic)
    log = ClientLog(cluster)
    yield "append of one record", _cost(lambda: log.append(topic, [Records(0, ONE)]), 20 * rounds)
    wanted = _ten_segments(log, topic)
    yield "plan of 10 segments", _cost(lambda: log.plan(wanted), 4 * rounds)
    stream = MicroBatches(address, topic)
    stream.plan()
    yield (
        "plan of a micro-batch of one record",
        _cost(stream.plan, rounds, lambda: log.append(topic, [Records(0, ONE)])),
    )
    stream.close()
    log.close()
    yield from _heartbeats(cluster, topic, rounds)
    last = topic.partition_count - 1
    yield (
        "Delta publication of one segment",
        _cost(lambda: publish(view, topic), rounds, lambda: simulated.add_segments(cluster, topic, 1, last)),
    )
    yield (
        "retention drops 10 segments",
        _cost(lambda: apply_retention(view, topic), rounds, lambda: _expire_ten(view, topic)),
    )
    writer = Writer(view.store, "benchmark", 900_000)
    maintenance = MaintenanceContext(view, cluster.store.settings, writer)
    yield "retention pass over all topics", _cost(lambda: list(retain(maintenance)), 3)
    writer.close()
    yield from _idle_tasks(cluster)
    if topic.store_id != HOME:
        yield "find a topic in a new process", _cost(lambda: _open(address, topic), 4 * rounds)
        yield from _idle_tasks(view, ", data store")


def _open(address: str, topic: Topic) -> None:
    with Cluster.open(address) as cluster:
        log = ClientLog(cluster)
        log.positions(log.find_topic(topic.name))
        log.close()


def _ten_segments(log: ClientLog, topic: Topic) -> dict[TopicPartition, OffsetRange]:
    """A range of ten segments in the middle of a long partition, or else the first segments of ten partitions."""
    limits = log.positions(topic)
    last = TopicPartition(topic.name, topic.partition_count - 1)
    start, end = limits[last]
    ten = 10 * simulated.RECORDS_PER_SEGMENT
    if end - start > 2 * ten:
        middle = (start + end) // 2 // simulated.RECORDS_PER_SEGMENT * simulated.RECORDS_PER_SEGMENT
        return {last: OffsetRange(middle, middle + ten)}
    return {tp: OffsetRange(*limits[tp]) for tp in list(limits)[-10:]}


class MicroBatches:
    """Plan a micro-batch as the driver of a stream does: the end offsets, and the tasks."""

    def __init__(self, address: str, topic: Topic) -> None:
        options = ReadOptions.parse({"subscribe": topic.name, "cluster": address}, streaming=True, environ={})
        self._reader = StreamReader(lambda: options, ReadColumns(("key", "value"), StructType()))
        self._start = self._reader.initialOffset()

    def plan(self) -> None:
        end = self._reader.latestOffset(self._start, ReadAllAvailable())
        tasks = self._reader.partitions(self._start, end) if end != self._start else ()
        assert len(tasks) <= 1
        self._start = end

    def close(self) -> None:
        self._reader.stop()


def _heartbeats(cluster: Cluster, topic: Topic, rounds: int) -> Iterator[tuple[str, tuple[float, float]]]:
    group_id = GROUP if topic.name == "grouped" else f"{GROUP}-{topic.name}"
    timeout_ms = simulated.SESSION_TIMEOUT_MS
    settings = MemberSettings("benchmark", "here", None, timeout_ms, timeout_ms)
    member = ConsumerMembership(cluster, group_id, settings, ["range"])
    stored = cluster.store.read(lambda connection: rows.read_member(connection, group_id, "member-000000"))
    assert stored is not None
    member.member_id, member.generation = stored.member_id, stored.member.generation
    owned = frozenset([TopicPartition(topic.name, 0)])
    assert member.heartbeat([topic.name], owned).partitions == owned

    def beat() -> None:
        assert not member.keep_alive()

    def age(connection: sa.Connection) -> None:
        m = t.group_member.c
        aged = m.until_ms - simulated.SESSION_TIMEOUT_MS // 2
        here = (m.group_id == group_id) & (m.member_id == member.member_id)
        connection.execute(t.group_member.update().where(here).values(until_ms=aged))

    yield "heartbeat", _cost(beat, 20 * rounds)
    yield "heartbeat that renews the session", _cost(beat, 4 * rounds, lambda: cluster.store.transact(age))


def _expire_ten(cluster: Cluster, topic: Topic) -> None:
    """Let ten more segments be so old that retention drops them: from one partition, or the first of ten."""

    def age(connection: sa.Connection) -> None:
        s, p = t.segment.c, t.partition.c
        files = sa.select(s.partition, s.base_offset).where(s.topic_id == topic.topic_id, ~s.inline)
        first = connection.execute(
            files.join(t.partition, (p.topic_id == s.topic_id) & (p.partition == s.partition))
            .where(s.partition > 0 if topic.partition_count > 1 else sa.true(), s.base_offset >= p.log_start_offset)
            .order_by(s.partition, s.base_offset).limit(10)
        ).all()  # fmt: skip
        assert len(first) == 10
        for partition, base_offset in first:
            here = (s.topic_id == topic.topic_id) & (s.partition == partition) & (s.base_offset == base_offset)
            connection.execute(t.segment.update().where(here).values(min_timestamp_ms=1, max_timestamp_ms=1))

    cluster.store.transact(age)


def _idle_tasks(cluster: Cluster, where: str = "") -> Iterator[tuple[str, tuple[float, float]]]:
    """The periodic tasks when nothing is to be done, one by one and together in ms of work per second."""
    settings = ClusterSettings()
    context = PeriodicTaskContext(cluster, settings, unfenced, lambda: False, term=None, run_buffer=TaskRunBuffer())
    wall, cpu = 0.0, 0.0
    tasks = coordinator_tasks() if cluster.store_id == HOME else data_store_tasks()
    for task in (*controller_tasks(cluster.store_id), *tasks):
        cost = _cost(lambda task=task: task.run(context), 3)  # type: ignore[misc]
        yield f"task: {task.name}{where}", cost
        # its pause is the rest of the interval
        pause_s = settings.metrics_interval_ms / 1000 if task.name == "record metrics" else task.pause_s(settings)
        wall, cpu = wall + cost[0] / pause_s, cpu + cost[1] / pause_s
    yield f"coordinator without work{where}, ms per second", (wall, cpu)


def _cost(
    action: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Medians of wall clock and CPU in ms, after a turn that does not count unless it takes seconds."""
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(rounds + 1):
        if walls and walls[0] > _ONCE_MS:
            return walls[0], cpus[0]
        before()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        action()
        walls.append(1000 * (time.perf_counter() - began_s))
        cpus.append(1000 * (time.process_time() - began_cpu_s))
    return statistics.median(walls[1:]), statistics.median(cpus[1:])


def _table(axis: str, costs: list[Cost]) -> Table:
    """A line for each operation and store: wall clock by size, and the growth of wall clock and CPU."""
    of_axis = [cost for cost in costs if cost.axis == axis]
    sizes = sorted({cost.size for cost in of_axis})
    table = Table(title=f"{axis}: ms, and the largest size / the smallest (of CPU time)", title_justify="left")
    for column in ("what", "store", *(f"{size:,}" for size in sizes), "growth"):
        table.add_column(column)
    for what, store in sorted({(cost.what, cost.store) for cost in of_axis}):
        found = {cost.size: cost for cost in of_axis if (cost.what, cost.store) == (what, store)}
        first, last = found[min(found)], found[max(found)]
        if what.startswith("task: ") and last.wall_ms < 10:
            continue
        cells = (f"{found[size].wall_ms:,.2f}" if size in found else "" for size in sizes)
        growth = f"{last.wall_ms / first.wall_ms:.2f} ({last.cpu_ms / max(first.cpu_ms, 0.01):.2f})"
        table.add_row(what, store, *cells, growth)
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=sorted(AXES), default=list(AXES), help="[all]")
    parser.add_argument("--stores", nargs="+", choices=("SQLite", "PostgreSQL"), default=["SQLite", "PostgreSQL"])
    parser.add_argument("--max", type=int, default=1_000_000, help="leave out larger sizes [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgresql", metavar="URL", help="a PostgreSQL database of a user that may create others")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to this file as well")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves to this .svg or .png (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
