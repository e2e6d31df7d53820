"""What one client asks for costs the others nothing: they are answered, in time, and their records are kept."""

import os
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from kafka.protocol.consumer import HeartbeatRequest
from kafka.protocol.metadata import MetadataRequest

from spark_log import Cluster, Consumer, Producer
from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.gateway_settings import limits_of
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.log.records.kafka_batch.header import HEADER_BYTES
from tests.support.costly_requests import HOSTILE_ADDRESS, batch_of, costly_fetches, produce_of
from tests.support.gateway_wire import (
    WireConnection,
    WireProducer,
    commit_request,
    committed,
    fetch_request,
    frame_of,
    produce_request,
    produced,
    transactional_batch,
)
from tests.support.kafka_batches import stored
from tests.support.python_process import PythonProcess
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import LIMIT_S, wait_until

MEMORY_MB_MAX = 1_500
ROUNDS_MIN = 10
"""The requests of each kind that a good client has answered during an attack. One that waits until the hostile requests
have been answered has none.
"""
LARGE_RECORDS, LARGE_BYTES = 40, 1_000_000


class GoodClient(threading.Thread):
    """Produces numbered records one by one, and asks for metadata, its records and its group."""

    def __init__(self, port):
        super().__init__()
        self.port, self.stop = port, threading.Event()
        self.sent, self.error = 0, None

    def run(self):
        try:
            with WireConnection(self.port) as connection:
                while not self.stop.is_set():
                    for name in ("metadata", "fetch", "heartbeat", "produce"):
                        getattr(self, name)(connection)
        except Exception as error:
            self.error = error

    def metadata(self, connection):
        kind = MetadataRequest.MetadataRequestTopic
        response = connection.exchange(MetadataRequest(topics=[kind(name="good")]), 4)
        assert [topic.error_code for topic in response.topics] == [0]

    def fetch(self, connection):
        [topic] = connection.exchange(fetch_request("good", self.sent, max_bytes=1_000), 11).responses
        assert topic.partitions[0].error_code == 0

    def heartbeat(self, connection):
        assert connection.exchange(HeartbeatRequest("group", 1, "nobody"), 0).error_code == 25  # UNKNOWN_MEMBER_ID

    def produce(self, connection):
        if not hasattr(self, "producer"):
            self.producer = WireProducer(connection, name=None)
        response = self.producer.send(connection, "good", b"%d" % self.sent, flag=0, transactional=False)
        assert response.error_code == 0
        self.sent += 1


@contextmanager
def gateway_on(address, folder):
    with Cluster.open(address) as cluster:
        make(cluster, "good", 1)
        make(cluster, "flights", 2)
        make(cluster, "large", 1)
    with Producer(cluster=address, max_request_size=2_000_000) as producer:
        for _ in range(LARGE_RECORDS):
            producer.send("large", os.urandom(LARGE_BYTES), partition=0)
    with GatewayProcess(folder, address, "--no-auto-create-topics") as gateway:
        yield gateway


@pytest.fixture
def address(tmp_path):
    """Of a cluster on SQLite, for what the store takes no part in."""
    with Cluster.init(str(tmp_path / "cluster")):
        return str(tmp_path / "cluster")


def attack(gateway, seed, share):
    good = GoodClient(gateway.port)
    hostile = PythonProcess(
        "-m", "tests.support.costly_requests", str(gateway.port), str(seed), str(share), stdout=subprocess.PIPE
    )
    try:
        assert b"sending" in hostile.stdout.readline()
        good.start()
        hostile.wait(timeout=600)
    finally:
        hostile.kill()
        good.stop.set()
        good.join(60)
    return good


def check(gateway, good, cluster_address):
    assert gateway.running, gateway.output[-4000:]
    assert good.error is None, (good.error, gateway.output[-4000:])
    assert "Traceback" not in gateway.output, gateway.output[-4000:]
    assert good.sent >= ROUNDS_MIN
    assert gateway.memory_mb("VmHWM") < MEMORY_MB_MAX
    with Consumer("good", cluster=cluster_address, auto_offset_reset="earliest", consumer_timeout_ms=2_000) as consumer:
        assert [int(record.value) for record in consumer] == list(range(good.sent))


@pytest.mark.slow
def test_costly_requests_of_one_client_leave_the_others_served(address, tmp_path):
    with gateway_on(address, tmp_path) as gateway:
        good = attack(gateway, seed=28, share=0.05)
        check(gateway, good, address)


@pytest.mark.long
def test_costly_requests_of_all_apis(cluster, cluster_address, tmp_path, request):
    with gateway_on(cluster_address, tmp_path) as gateway:
        good = attack(gateway, seed=request.config.getoption("--hypothesis-seed") or 28, share=1.0)
        check(gateway, good, cluster_address)


@pytest.fixture
def gateway_of(address, gateway_with):
    """Starts a gateway with these configs."""
    with Cluster.open(address) as cluster:
        make(cluster, "flights", 2)
    return gateway_with


def connected(gateway, address=HOSTILE_ADDRESS):
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=LIMIT_S, source_address=(address, 0))


def compressed(values):
    """A batch of one record with this value, in zstd."""
    batch = encode(stored([(1, None, values, [])]), base_offset=0, last_offset=0, leader_epoch=0)
    return batch_of(pa.compress(batch[HEADER_BYTES:], codec="zstd", asbytes=True), 1, 4)


def is_closed(connection):
    """Whether the gateway closes the connection, within the time-out."""
    with suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def send_unfinished(connection):
    connection.settimeout(1)
    with suppress(OSError):  # it is not read any more, or closed
        connection.sendall(struct.pack(">ihhih", 90_000_000, 0, 8, 1, 0) + bytes(20_000_000))


def test_unfinished_frames_of_one_client_leave_memory_for_others(gateway_of):
    gateway = gateway_of("queued.max.request.bytes=100000000")
    frame = produce_of("flights", [os.urandom(900_000)])
    connections = [connected(gateway) for _ in range(25)]
    try:
        with ThreadPoolExecutor(len(connections)) as pool:
            list(pool.map(send_unfinished, connections))
        with connected(gateway, "127.0.0.1") as good:
            good.sendall(frame)
            assert good.recv(4)
        assert gateway.memory_mb("VmHWM") < 700
    finally:
        for connection in connections:
            connection.close()


def test_requests_of_clients_that_have_gone_hold_no_memory(gateway_of):
    gateway = gateway_of("queued.max.request.bytes=20000000")
    bombs = produce_of("flights", [compressed(bytes(10_000_000))] * 3)
    for _ in range(4):
        connection = connected(gateway)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            connection.sendall(bombs * 20)
        connection.close()  # a reset
    with connected(gateway, "127.0.0.1") as good:
        good.sendall(produce_of("flights", [os.urandom(900_000)]))
        assert good.recv(4)


def test_requests_that_become_large_do_not_wait_for_each_other(gateway_of):
    gateway = gateway_of("queued.max.request.bytes=20000000")
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(gateway)) for _ in range(4)]
        frame = produce_of("flights", [compressed(os.urandom(900_000))] * 10)
        for connection in connections:
            connection.sendall(frame)
        for connection in connections:
            assert connection.recv(4)


def test_a_response_that_was_read_takes_no_memory(address, tmp_path):
    with gateway_on(address, tmp_path) as gateway, ExitStack() as stack:
        frame = next(costly_fetches())
        for _ in range(8):
            connection = stack.enter_context(connected(gateway))
            connection.sendall(frame)
            left = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
        assert gateway.memory_mb() < 500


def test_large_and_small_requests_of_a_producer_stay_in_order_where_rights_are_checked(address, tmp_path):
    with Cluster.open(address) as cluster:
        make(cluster, "flights", 1)
    options = ("--acls", "--super-users", "User:ANONYMOUS")
    with GatewayProcess(tmp_path, address, *options) as gateway, WireConnection(gateway.port) as connection:
        producer = WireProducer(connection, name=None)
        requests = []
        for sequence in range(12):
            value = bytes(10 if sequence % 2 else 60_000)
            batch = transactional_batch(value, producer.producer_id, producer.epoch, sequence, flag=0)
            requests.append(produce_request({"flights": batch}))
        for request in requests:
            connection.send(request, 8)
        answers = [connection.receive(request, 8).responses[0].partition_responses[0] for request in requests]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, number) for number in range(12)]


def sockets_of(pid):
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def waiting_fetch():
    """The frame of a fetch that waits for five minutes."""
    return frame_of(fetch_request("flights", max_bytes=1_000, max_wait_ms=300_000, min_bytes=1), 11)


def test_a_fetch_ends_when_its_client_goes(gateway_of):
    gateway = gateway_of()
    before = sockets_of(gateway.pid)
    for _ in range(50):
        with connected(gateway) as connection:
            connection.sendall(waiting_fetch() * 2)  # the second waits for the first
    wait_until(lambda: sockets_of(gateway.pid) <= before, "connections of clients that have gone are open")


def test_a_frame_that_is_refused_behind_a_long_fetch_takes_no_memory(gateway_of):
    gateway = gateway_of("queued.max.request.bytes=2000000")
    frame = produce_of("flights", [compressed(os.urandom(900_000))])
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(connected(gateway))
            connection.sendall(waiting_fetch() + struct.pack(">ihhi", 1_000_000, 0, 0, 1) + bytes(1_000_000 - 8))
        sender = stack.enter_context(connected(gateway))
        sender.settimeout(30)
        sender.sendall(frame)
        assert sender.recv(4)


def test_reasons_of_invalid_records_are_those_of_the_first_thousand(address, tmp_path):
    with Cluster.open(address) as cluster:
        make(cluster, "late", 1, message_timestamp_before_max_ms="1000")
    rows = [(1_000, None, b"v", [])] * 25_000
    batch = encode(stored(rows), base_offset=0, last_offset=len(rows) - 1, leader_epoch=0)
    with GatewayProcess(tmp_path, address) as gateway, WireConnection(gateway.port) as connection:
        answer = produced(connection, "late", batch)
    assert answer.error_code == 32  # INVALID_TIMESTAMP
    assert [each.batch_index for each in answer.record_errors] == list(range(1_000))


def test_a_partition_that_a_fetch_names_again_and_again_is_sent_once(address, tmp_path):
    with gateway_on(address, tmp_path) as gateway:
        for frame in costly_fetches():
            with connected(gateway) as connection:
                connection.sendall(frame)
                assert int.from_bytes(connection.recv(4), "big") < 56 * 1024 * 1024


def test_idle_connections_are_closed_and_busy_ones_are_not(gateway_of):
    gateway = gateway_of("connections.max.idle.ms=1000")
    with connected(gateway) as idle, WireConnection(gateway.port, timeout_s=LIMIT_S) as busy:
        done, asked, pauses_s = threading.Event(), [], []

        def ask():
            began_s = time.monotonic()
            while len(asked) < 2 or not done.is_set():
                now_s = time.monotonic()
                try:
                    asked.append(busy.exchange(MetadataRequest(topics=None), 1))
                except (ConnectionError, AssertionError):  # it is closed
                    pauses_s.append(time.monotonic() - began_s)
                    return
                began_s = now_s

        asking = threading.Thread(target=ask)
        asking.start()
        assert is_closed(idle)
        done.set()
        asking.join(LIMIT_S)
        # closed only if no request came for as long as the limit, because a slow machine stopped this process
        assert all(pause_s >= 1.0 for pause_s in pauses_s), pauses_s
        assert pauses_s or asked[-1].brokers


def test_one_address_leaves_connections_to_the_others(gateway_of):
    gateway = gateway_of("max.connections.per.ip=5")
    connections = [connected(gateway) for _ in range(6)]
    try:
        assert is_closed(connections[5])
        with WireConnection(gateway.port) as good:
            assert good.exchange(MetadataRequest(topics=None), 1).brokers
    finally:
        for connection in connections:
            connection.close()


def test_a_limit_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(
        InvalidConfigurationError, match=r"fetch\.max\.byte.*expected NAME=VALUE with one of.*fetch\.max\.bytes"
    ):
        limits_of(["fetch.max.byte=1"])
    with pytest.raises(InvalidConfigurationError, match="got 'many'"):
        limits_of(["max.connections=many"])


def test_a_locked_group_leaves_other_groups_and_metadata_served(postgres_url, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "files")) as cluster:
        make(cluster, "flights", 1)
        with GatewayProcess(tmp_path, postgres_url) as gateway:
            with WireConnection(gateway.port) as connection:
                for group in ("locked", "other"):
                    assert committed(connection, commit_request(group, "flights")) == 0
            with sa.create_engine(postgres_url).begin() as lock, ExitStack() as stack:
                lock.execute(sa.text("SELECT * FROM consumer_group WHERE group_id = 'locked' FOR UPDATE"))
                for _ in range(12):
                    waiting = stack.enter_context(WireConnection(gateway.port))
                    waiting.send(commit_request("locked", "flights"), 8)
                with WireConnection(gateway.port, timeout_s=LIMIT_S) as connection:  # the lock does not end
                    assert connection.exchange(MetadataRequest(topics=None), 1).brokers
                    assert committed(connection, commit_request("other", "flights")) == 0
