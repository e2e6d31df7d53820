"""What one client asks for costs the others nothing: they are answered, in time, and their records are kept."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from kafka.protocol.consumer import FetchRequest, HeartbeatRequest
from kafka.protocol.metadata import MetadataRequest

from spark_log import Consumer, Producer
from tests.support.gateway_process import GatewayProcess
from tests.support.gateway_wire import WireConnection
from tests.support.python_process import PythonProcess
from tests.support.topics import make
from tests.support.wire_producer import WireProducer

MEMORY_MB_MAX = 1_500
ANSWER_S_MAX = 2.0
LARGE_RECORDS, LARGE_BYTES = 40, 1_000_000


def peak_memory_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class GoodClient(threading.Thread):
    """Produces numbered records one by one, and asks for metadata, its records and its group; times each answer."""

    def __init__(self, port):
        super().__init__()
        self.port, self.stop = port, threading.Event()
        self.sent, self.slowest, self.error = 0, (0.0, "nothing"), None

    def run(self):
        try:
            with WireConnection(self.port) as connection:
                while not self.stop.is_set():
                    for name in ("metadata", "fetch", "heartbeat", "produce"):
                        began_s = time.monotonic()
                        getattr(self, name)(connection)
                        self.slowest = max(self.slowest, (time.monotonic() - began_s, name))
        except Exception as error:
            self.error = error

    def metadata(self, connection):
        kind = MetadataRequest.MetadataRequestTopic
        response = connection.exchange(MetadataRequest(topics=[kind(name="good")]), 4)
        assert [topic.error_code for topic in response.topics] == [0]

    def fetch(self, connection):
        kind = FetchRequest.FetchTopic
        partition = kind.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=self.sent, log_start_offset=-1, partition_max_bytes=1_000
        )
        request = FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1_000, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[kind(topic="good", partitions=[partition])], forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        [topic] = connection.exchange(request, 11).responses
        assert topic.partitions[0].error_code == 0

    def heartbeat(self, connection):
        assert connection.exchange(HeartbeatRequest("group", 1, "nobody"), 0).error_code == 25  # UNKNOWN_MEMBER_ID

    def produce(self, connection):
        if not hasattr(self, "producer"):
            self.producer = WireProducer(connection, name="good")
        response = self.producer.send(connection, "good", b"%d" % self.sent, flag=0, transactional=False)
        assert response.error_code == 0
        self.sent += 1


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    make(cluster, "good", 1)
    make(cluster, "flights", 2)
    make(cluster, "large", 1)
    with Producer(cluster=cluster_address, max_request_size=2_000_000) as producer:
        for _ in range(LARGE_RECORDS):
            producer.send("large", os.urandom(LARGE_BYTES), partition=0)
    with GatewayProcess(tmp_path, cluster_address, "--no-auto-create-topics") as gateway:
        yield gateway


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
    print(good.slowest, good.sent, peak_memory_mb(gateway.pid))
    assert good.slowest[0] < ANSWER_S_MAX
    assert peak_memory_mb(gateway.pid) < MEMORY_MB_MAX
    with Consumer("good", cluster=cluster_address, auto_offset_reset="earliest", consumer_timeout_ms=2_000) as consumer:
        assert [int(record.value) for record in consumer] == list(range(good.sent))


def test_costly_requests_of_one_client_leave_the_others_served(gateway, cluster_address):
    good = attack(gateway, seed=28, share=0.2)
    check(gateway, good, cluster_address)
