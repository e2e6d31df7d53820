"""Quotas of Kafka clients: are they kept and shared fairly, and what do they cost others? Part of `make bench-gateway`.

Two librdkafka producers, each at a gateway of its own, send as fast as they may for SECONDS under one quota. Then a
client without a quota produces in turn with quotas of others in the cluster and without any.
"""

import statistics
import tempfile
import threading
import time
from pathlib import Path

import confluent_kafka

from benchmarks.gateway import PARTITIONS, Server, produce
from benchmarks.setup import parser
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.quotas.quota_rows import write_quotas
from spark_log.cluster.quotas.rules import entity_of
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.server_processes import GatewayProcess

SECONDS = 30
RATE = 2_000_000
_EVERYONE, _OTHER = entity_of([("user", None)]), entity_of([("client-id", "other")])
_VALUE = b"x" * 1_000


def send_for(address: str, client_id: str, seconds: float, sent: dict[str, int]) -> None:
    """Send as much as is acknowledged within this time; its bytes go to `sent`."""
    acknowledged = [0]

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None and time.monotonic() < ends_s:
            acknowledged[0] += len(message.value() or b"")

    settings = {
        "bootstrap.servers": address,
        "client.id": client_id,
        "linger.ms": 20,
        "batch.size": 60_000,
        "queue.buffering.max.kbytes": 1_000,
    }
    client = confluent_kafka.Producer(settings)
    ends_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < ends_s:
        try:
            client.produce("flights", _VALUE, b"%d" % (number % 1_000), on_delivery=delivered)
            number += 1
            client.poll(0)
        except BufferError:
            client.poll(0.02)
    client.purge()
    client.flush(10)
    sent[client_id] = acknowledged[0]


def fair_share(folder: Path, seconds: float) -> None:
    """Two gateways, one quota."""
    address = str(folder / "shared")
    with Cluster.init(address) as cluster:
        create_topic(cluster, "flights", PARTITIONS)
        write_quotas(cluster.store, [(_EVERYONE, {"producer_byte_rate": RATE})])
    with (
        GatewayProcess(folder, address, "--zone", "a") as first,
        GatewayProcess(folder, address, "--zone", "b") as second,
    ):
        sent: dict[str, int] = {}
        senders = [
            threading.Thread(target=send_for, args=(gateway.address, f"zone={zone}", seconds, sent))
            for gateway, zone in ((first, "a"), (second, "b"))
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    total = sum(sent.values())
    print(f"| Quota of {RATE / 1e6:.0f} MB/s, {seconds:.0f} s, two gateways | {total / seconds / RATE:.3f} of it |")
    for client_id, count in sorted(sent.items()):
        print(f"| share of {client_id} | {count / total:.3f} |")


def cost(folder: Path, records: int, rounds: int) -> None:
    """CPU time of the gateway for a client that is not limited, with quotas of others and without any."""
    address = str(folder / "unlimited")
    with Cluster.init(address) as cluster, GatewayProcess(folder, address) as gateway:
        create_topic(cluster, "flights", PARTITIONS)
        server = Server("gateway", gateway.address, gateway.pid)
        produce(server, records, "flights")
        ratios = []
        for _ in range(rounds):
            taken = {}
            for value in (None, 1.0):
                write_quotas(cluster.store, [(_OTHER, {"producer_byte_rate": value})])
                time.sleep(2.5)  # gateways read quotas every two seconds
                before_s = server.cpu_s()
                produce(server, records, "flights")
                taken[value] = server.cpu_s() - before_s
            ratios.append(taken[None] / taken[1.0])
    spread = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
    print(
        f"| An unlimited producer beside quotas of others, by CPU time | {statistics.median(ratios):.3f} ({spread}) |"
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=SECONDS, help="[%(default)s]")
    options.add_argument("--records", type=int, default=500_000, help="[%(default)s]")
    arguments = options.parse_args()
    print("\n| Quotas | |\n|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        fair_share(Path(folder), arguments.seconds)
        cost(Path(folder), arguments.records, arguments.rounds)


if __name__ == "__main__":
    main()
