"""Two gateways over PostgreSQL under load of librdkafka and Java, killed in turn, and a restart of PostgreSQL."""

import threading
import time
from collections import Counter

import confluent_kafka as rdkafka
import pytest

from spark_log.cluster.cluster import Cluster
from tests.support.kafka_programs import java_producer
from tests.support.records import topic_rows
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import wait_until

PAUSE_S = 0.5
KEYS = 20
JAVA = 10_000_000
"""The number of the first record of the Java client."""


@pytest.mark.slow
def test_each_acknowledged_record_is_there_once_and_reaches_a_group(own_postgres_server, tmp_path):
    address = own_postgres_server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        make(cluster, "t", 4)
        gateways = [GatewayProcess(tmp_path, address) for _ in range(2)]
        servers = ",".join(each.address for each in gateways)
        produced, trouble = threading.Event(), threading.Event()
        sent, sent_by_java, acknowledged, acknowledged_by_java, errors, seen = [], [], [], [], [], set()

        def delivered(error, message):
            (errors if error else acknowledged).append(error or message.value())

        def produce():
            client = rdkafka.Producer(
                {"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True, "message.timeout.ms": 60_000}
            )
            while not trouble.is_set():
                for _ in range(20):
                    number = len(sent)
                    sent.append(b"%d" % number)
                    client.produce("t", b"%d" % number, b"librdkafka-%d" % (number % KEYS), on_delivery=delivered)
                client.poll(0.01)
            client.flush(60)

        def produce_from_java():
            settings = {"bootstrap.servers": servers, "linger.ms": "5", "delivery.timeout.ms": "60000"}
            with java_producer(settings) as client:
                while not trouble.is_set():
                    for _ in range(20):
                        number = JAVA + len(sent_by_java)
                        sent_by_java.append(b"%d" % number)
                        client.send("t", b"java-%d" % (number % KEYS), b"%d" % number)
                    time.sleep(0.01)
                acknowledged_by_java.extend(client.acknowledged())

        def consume():
            consumer = rdkafka.Consumer(
                {
                    "bootstrap.servers": servers,
                    "group.id": "g",
                    "auto.offset.reset": "earliest",
                    "auto.commit.interval.ms": 200,
                    "session.timeout.ms": 6_000,
                    "heartbeat.interval.ms": 200,
                    "fetch.wait.max.ms": 100,
                }
            )
            consumer.subscribe(["t"])
            until = time.monotonic() + 120
            while time.monotonic() < until and not (produced.is_set() and len(seen) >= len(sent) + len(sent_by_java)):
                seen.update(message.value() for message in consumer.consume(500, 0.1) if message.error() is None)
            consumer.close()

        producers = [threading.Thread(target=run) for run in (produce, produce_from_java)]
        consumers = [threading.Thread(target=consume) for _ in range(2)]
        try:
            for gateway in gateways:
                gateway.start()
            for thread in (*producers, *consumers):
                thread.start()
            wait_until(lambda: acknowledged and sent_by_java and seen)
            for kills in range(4):
                time.sleep(PAUSE_S)  # the load; what it must survive is the rest of the loop
                if kills == 2:
                    own_postgres_server.stop()
                    own_postgres_server.start()
                gateway = gateways[kills % 2]
                gateway.kill()
                gateway.start()
        finally:
            trouble.set()
            for thread in producers:
                thread.join()
            produced.set()
            for thread in consumers:
                thread.join()
            for gateway in gateways:
                gateway.kill()
        rows = topic_rows(cluster, "t")
    assert errors == []
    assert acknowledged_by_java == sent_by_java != []
    assert sorted(acknowledged) == sorted(sent) != []
    assert Counter(row["value"] for row in rows) == Counter(sent + sent_by_java)
    assert seen == {*sent, *sent_by_java}
    for key in {row["key"] for row in rows}:
        numbers = [int(row["value"]) for row in rows if row["key"] == key]
        assert numbers == sorted(numbers)
