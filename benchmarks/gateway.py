"""A gateway beside a real Kafka broker, with the same librdkafka client: `make bench-gateway`.

Rates are given per second of wall clock and per second of CPU time of the server: the client takes one of the cores,
and a broker leaves its log in the page cache where a gateway commits to a store. PostgreSQL's CPU time is not in it.
"""

import argparse
import contextlib
import os
import socket
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka

from benchmarks.kafka_report import ON_POSTGRESQL, OURS, Bar, Row, parser, percentiles, print_rows
from benchmarks.machine import cpu_s, memory_mb, seconds_of
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.gateway.protocol.wire import Message
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.classic_members import ClassicMember
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection
from tests.support.kafka_programs import KafkaBroker
from tests.support.server_processes import GatewayProcess

_VALUE = os.urandom(50).hex().encode()
_KEYS = [b"key-%d" % number for number in range(1_000)]
PARTITIONS = 4
_WARM_UP = 50
SINGLE_BAR_MS = 1.2
PARTS = ("rates", "single", "groups")
FORCED, KAFKA_FORCED = "forced", "Kafka, fsync"
"""A topic of which Kafka forces each message to the disk before it acknowledges it, as spark-log does."""


class Server:
    """A server under test: its address, and the CPU seconds that it has taken."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name, self.address, self._pid = name, address, pid

    def cpu_s(self) -> float:
        return cpu_s(self._pid)

    def memory_mb(self) -> float:
        return memory_mb(self._pid)


def produce(server: Server, records: int, topic: str) -> None:
    client = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.address,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    for number in range(records):
        client.produce(topic, _VALUE, _KEYS[number % 1_000])
        if number % 1_000 == 0:
            client.poll(0)
    assert client.flush(300) == 0


def fetch(server: Server, records: int, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.address, "group.id": "bench", "enable.auto.commit": False}
    )
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, number, beginning) for number in range(PARTITIONS)])
    seen = 0
    while seen < records:
        seen += len(consumer.consume(5_000, 10))
    consumer.close()


def single(server: Server, count: int, topic: str = "single") -> tuple[list[float], float]:
    """Return the seconds of one record after the other, acks=all, and the server's CPU seconds for each."""
    client = confluent_kafka.Producer({"bootstrap.servers": server.address, "linger.ms": 0, "acks": "all"})
    taken = []
    for number in range(_WARM_UP + count):
        if number == _WARM_UP:
            cpu_s = server.cpu_s()
        began = time.perf_counter()
        client.produce(topic, _VALUE)
        assert client.flush(30) == 0
        taken.append(time.perf_counter() - began)
    return taken[_WARM_UP:], (server.cpu_s() - cpu_s) / count


def classic_heartbeat(wire: WireConnection, group_id: str) -> tuple[Message, int]:
    """The request of a new member, and its version."""
    member = ClassicMember(wire, group_id, ["single"], assignor="range")
    assert (member.join(), member.sync()) == (0, 0)
    return member.heartbeat(), 3


def consumer_heartbeat(wire: WireConnection, group_id: str) -> tuple[Message, int]:
    """The same with group.protocol=consumer."""
    member = ConsumerMember(wire, group_id, topic_ids(wire, "single"), subscribed_topic_names=["single"])
    assert member.join().error_code == member.full().error_code == member.beat().error_code == 0
    return member.request(), member.version


def heartbeats(
    server: Server, join: Callable[[WireConnection, str], tuple[Message, int]], members: int, seconds: float
) -> float:
    """Heartbeats per second of CPU time of the server, of members at the same time, each alone in its group."""
    count = 0
    with contextlib.ExitStack() as stack:
        beating = []
        for number in range(members):
            wire = stack.enter_context(WireConnection(int(server.address.rpartition(":")[2])))
            beating.append((wire, *join(wire, f"{join.__name__}-{members}-{number}")))
        began, end = server.cpu_s(), time.monotonic() + seconds
        while time.monotonic() < end:
            for wire, request, version in beating:
                wire.send(request, version)
            assert not any(wire.receive(request, version).error_code for wire, request, version in beating)
            count += members
        return count / max(0.01, server.cpu_s() - began)


def idle_connections(server: Server, count: int) -> float:
    """MB of memory that `count` connections add, each after one request."""
    host, _, port = server.address.rpartition(":")
    before = server.memory_mb()
    frame = struct.pack(">hhih", 18, 0, 1, -1)
    connections = [socket.create_connection((host, int(port))) for _ in range(count)]
    for each in connections:
        each.sendall(struct.pack(">i", len(frame)) + frame)
        each.recv(struct.unpack(">i", each.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
    after = server.memory_mb()
    for each in connections:
        each.close()
    return after - before


def measure(servers: list[Server], ours: dict[str, str], arguments: argparse.Namespace) -> Iterator[Row]:
    if "rates" in arguments.parts:
        yield from _rates(servers, arguments)
    if "single" in arguments.parts:
        yield _singles(servers, ours, arguments)
    if "groups" in arguments.parts:
        yield from _groups(servers)


def _rates(servers: list[Server], arguments: argparse.Namespace) -> Iterator[Row]:
    for what, run in (("produce", produce), ("fetch", fetch)):
        wall: dict[str, list[float]] = {server.name: [] for server in servers}
        cpu: dict[str, list[float]] = {server.name: [] for server in servers}
        for number in range(arguments.rounds + 1):
            for server in servers:
                topic = f"t{number}" if run is produce else "t0"
                cpu_s, began = server.cpu_s(), time.perf_counter()
                run(server, arguments.records, topic)
                if number:
                    wall[server.name].append(time.perf_counter() - began)
                    cpu[server.name].append(server.cpu_s() - cpu_s)
        seconds = {name: statistics.median(each) for name, each in wall.items()}
        cpu_seconds = {name: statistics.median(each) for name, each in cpu.items()}
        shown = {
            name: f"{_thousands(arguments.records, each)}; a core of the server"
            f" {_thousands(arguments.records, cpu_seconds[name])}"
            for name, each in seconds.items()
        }
        yield Row(f"{what}: {arguments.records:,} keyed records of 100 bytes", shown, seconds)


def _singles(servers: list[Server], ours: dict[str, str], arguments: argparse.Namespace) -> Row:
    """One record after the other, by one client; the servers take turns."""
    taken: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    turns = [*((server.name, server, "single") for server in servers), (KAFKA_FORCED, servers[-1], FORCED)]
    for _ in range(arguments.rounds):
        for name, server, topic in turns:
            seconds, cpu_s = single(server, arguments.gets, topic)
            taken[name] += seconds
            cpu[name].append(cpu_s)
        for name, address in ours.items():
            with Producer(cluster=address) as client:
                seconds = [
                    seconds_of(lambda client=client: client.send("single", _VALUE).get())  # type: ignore[misc]
                    for _ in range(_WARM_UP + arguments.gets)
                ]
                taken[f"{name}, Producer"] += seconds[_WARM_UP:]
    shown = {name: percentiles(each) for name, each in taken.items()}
    for name, each in cpu.items():
        shown[name] += f", the server's CPU {1000 * statistics.mean(each):.2f} ms"
    medians = {name: statistics.median(each) for name, each in taken.items()}
    bar = Bar(OURS, f"p50 <= {SINGLE_BAR_MS} ms", 1000 * medians[OURS] <= SINGLE_BAR_MS)
    return Row("one record through a gateway, acks=all", shown, medians, [bar])


def _groups(servers: list[Server]) -> Iterator[Row]:
    for protocol, join in (("classic", classic_heartbeat), ("consumer", consumer_heartbeat)):
        for members in (1, 100):
            rates = {server.name: heartbeats(server, join, members, 3) for server in servers}
            shown = {name: f"{each:,.0f} a core of the server" for name, each in rates.items()}
            what = f"heartbeats, {protocol} protocol, {members} members"
            yield Row(what, shown, {name: 1 / each for name, each in rates.items()})
    memory = {server.name: idle_connections(server, 1_000) for server in servers}
    yield Row("1,000 idle connections", {name: f"{each:.0f} MB" for name, each in memory.items()}, memory)


def _thousands(records: int, seconds: float) -> str:
    return f"{records / seconds / 1000:,.0f} k/s"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--gets", type=int, default=300, help="single records in each round")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name,
        KafkaBroker(Path(name)) as broker,
    ):
        folder = Path(name)
        stores = {OURS: str(folder / "cluster")}
        if arguments.postgresql:
            stores[ON_POSTGRESQL] = arguments.postgresql
        gateways: dict[str, GatewayProcess] = {}
        topics = [("single", 1), *((f"t{number}", PARTITIONS) for number in range(arguments.rounds + 1))]
        for store, address in stores.items():
            with Cluster.init(address, log_dir=str(folder / f"log-dir-{len(gateways)}")) as cluster:
                for topic, partitions in topics:
                    create_topic(cluster, topic, partitions)
            gateways[store] = GatewayProcess(folder, address)
        for topic, partitions in topics:
            broker.create_topic(topic, partitions)
        broker.create_topic(FORCED, 1, flush_messages=1)
        try:
            for gateway in gateways.values():
                gateway.start()
            servers = [Server(store, gateway.address, gateway.pid) for store, gateway in gateways.items()]
            servers.append(Server("Kafka", broker.address, broker.pid))
            rows = list(measure(servers, stores, arguments))
        finally:
            for gateway in gateways.values():
                gateway.kill()
    print_rows("gateway beside Kafka, one librdkafka client", rows, arguments.json)


if __name__ == "__main__":
    main()
