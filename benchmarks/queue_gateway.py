"""Kafka clients of share groups on a gateway, for `benchmarks.queues`."""

import multiprocessing
import selectors
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway import Server
from spark_log.gateway.child_process import serve
from spark_log.gateway.protocol.schemas import ShareFetchRequest, ShareGroupHeartbeatRequest
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess, free_port

_PROCESSES, _OF_EACH = 2, 8
_PARTITIONS = 4
_WAIT_MS = 5_000
_START_S_MAX = 60.0


@dataclass
class Member:
    """A Kafka client in share group of-TOPIC."""

    connection: WireConnection
    group: str
    member: str
    epoch: int = 0

    def join(self, topic: str) -> uuid.UUID:
        """Join the group, and return the topic's id."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member, member_epoch=0, rack_id=None, subscribed_topic_names=[topic]
        )
        [assigned] = self.connection.exchange(request, 1).assignment.topic_partitions
        return uuid.UUID(str(assigned.topic_id))

    def fetch(self, topic_id: uuid.UUID, acknowledged: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Acknowledge records by (partition, offset), and return those that were acquired."""
        request = self.request(topic_id, acknowledged)
        answer = self.connection.exchange(request, 2)
        assert answer.error_code == 0, answer
        self.epoch += 1
        return [
            (each.partition_index, r.first_offset)
            for topic in answer.responses
            for each in topic.partitions
            for r in each.acquired_records
        ]

    def request(self, topic_id: uuid.UUID, acknowledged: Sequence[tuple[int, int]]) -> ShareFetchRequest:
        kind = ShareFetchRequest.FetchTopic
        part = kind.FetchPartition
        parts = [
            part(
                partition_index=number,
                acknowledgement_batches=[
                    part.AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[1])
                    for at, offset in acknowledged
                    if at == number
                ],
            )
            for number in (range(_PARTITIONS) if self.epoch == 0 else {at for at, _ in acknowledged})
        ]
        return ShareFetchRequest(
            group_id=self.group, member_id=self.member, share_session_epoch=self.epoch, max_wait_ms=_WAIT_MS,
            min_bytes=1, max_bytes=1 << 20, max_records=1, batch_size=1, share_acquire_mode=1, is_renew_ack=False,
            topics=[kind(topic_id=topic_id, partitions=parts)] if parts else [], forgotten_topics_data=[],
        )  # fmt: skip


@contextmanager
def gateway(address: str, workers: int) -> Iterator[int]:
    """Run a gateway of so many processes, and yield its port when all of them listen."""
    metrics_port = free_port()
    options = ["--workers", str(workers), "--metrics-port", str(metrics_port)]
    with serve(address, *options) as server:
        deadline_s = time.monotonic() + _START_S_MAX
        for number in range(workers):
            while not _listens(metrics_port + number):
                assert time.monotonic() < deadline_s, "a process of the gateway does not start"
                time.sleep(0.1)
        yield int(server.rpartition(":")[2])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def fetch_together(port: int, topic: str, seconds: float) -> float:
    """Return how many records 16 clients fetch and acknowledge in a second, one with each request."""
    with WireConnection(port) as connection:
        topic_id = Member(connection, f"of-{topic}", "joins").join(topic)
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(_PROCESSES), context.Queue()
    arguments = (port, f"of-{topic}", topic_id.hex, seconds, ready, counts)
    processes = [context.Process(target=_fetch_all, args=arguments) for _ in range(_PROCESSES)]
    for process in processes:
        process.start()
    total = sum(float(counts.get()) for _ in processes)
    for process in processes:
        process.join()
    return total


def _fetch_all(port: int, group: str, topic_id: str, seconds: float, ready: object, counts: object) -> None:
    """Fetch by eight clients in threads."""
    fetched = [0] * _OF_EACH
    ready.wait()  # type: ignore[attr-defined]
    until_s = time.perf_counter() + seconds

    def work(number: int) -> None:
        with WireConnection(port) as connection:
            member = Member(connection, group, f"{uuid.uuid4()}")
            held: list[tuple[int, int]] = []
            while time.perf_counter() < until_s:
                held = member.fetch(uuid.UUID(hex=topic_id), held)
                fetched[number] += len(held)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_OF_EACH)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts.put(sum(fetched) / seconds)  # type: ignore[attr-defined]


def cpu_while_waiting(address: str, topic: str, members: int, seconds: float) -> float:
    """Return the cores that a gateway uses while members wait for records. They ask again after _WAIT_MS."""
    with (
        tempfile.TemporaryDirectory(prefix="spark-log-bench-") as folder,
        GatewayProcess(Path(folder), address) as process,
        ExitStack() as stack,
        selectors.DefaultSelector() as waiting,
    ):
        server = Server("gateway", process.address, process.pid)
        clients = []
        for number in range(members):
            connection = stack.enter_context(WireConnection(process.port))
            clients.append(Member(connection, f"of-{topic}", f"m{number}"))
        topic_ids = [client.join(topic) for client in clients]
        for client, topic_id in zip(clients, topic_ids, strict=True):
            client.connection.send(client.request(topic_id, ()), 2)
            waiting.register(client.connection, selectors.EVENT_READ, (client, topic_id))
            time.sleep(_WAIT_MS / 1000 / members)  # so that they do not ask at the same time
        before_s, began_s = server.cpu_s(), time.perf_counter()
        while time.perf_counter() - began_s < seconds:
            for key, _ in waiting.select(0.1):
                client, topic_id = key.data
                answer = client.connection.receive(client.request(topic_id, ()), 2)
                assert answer.error_code == 0, answer
                client.epoch += 1
                client.connection.send(client.request(topic_id, ()), 2)
        return (server.cpu_s() - before_s) / (time.perf_counter() - began_s)
