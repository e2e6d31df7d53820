"""Share groups beside a real broker, in turns: `make bench-kafka`, `python -m benchmarks.kafka_queues`.

Members of one group take all records of a topic with two partitions and accept them: spark-log's ShareConsumer on a
SQLite cluster, and confluent-kafka's on a Kafka 4.4 broker with one node and on a gateway of spark-log. spark-log
forces acknowledgements to disk before it answers. A broker writes them to `__share_group_state`, and does not wait for
the disk.
"""

import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.setup import in_turns, medians
from spark_log import Producer, ShareConsumer
from spark_log.cluster.cluster import Cluster
from spark_log.gateway.child_process import serve
from spark_log.groups.share.administration import alter_group_configs
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.kafka_programs import KafkaBroker

_VALUE = b"x" * 100
_MEMBERS = (1, 4)
_TOPIC = "jobs"
_BROKER = {"share_coordinator_state_topic_replication_factor": "1", "share_coordinator_state_topic_min_isr": "1"}
_OFFSETS = {"share.auto.offset.reset": "earliest"}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=1_000_000)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        cluster = f"{name}/cluster"
        with Cluster.init(cluster) as opened:
            create_topic(opened, _TOPIC, 2)
        with Producer(cluster=cluster) as producer:
            producer.send_table(_TOPIC, pa.table({"value": pa.array([_VALUE] * arguments.records, pa.binary())}))
        with KafkaBroker(Path(name), **_BROKER) as broker, serve(cluster) as gateway:
            broker.create_topic(_TOPIC, 2)
            _fill(broker.address, arguments.records)
            rows = [_row(cluster, broker.address, gateway, members, arguments) for members in _MEMBERS]
    print_rows("share groups: spark-log beside Kafka", rows, arguments.json)


def _row(cluster: str, broker: str, gateway: str, members: int, arguments: object) -> Row:
    records, rounds = arguments.records, arguments.rounds  # type: ignore[attr-defined]
    takes: dict[str, Callable[[], float]] = {
        OURS: partial(_together, _take_ours, cluster, records, members, partial(_prepare_ours, cluster)),
        f"{OURS}, poll_arrow": partial(
            _together, _take_arrow, cluster, records, members, partial(_prepare_ours, cluster)
        ),
        "confluent-kafka, gateway": partial(_together, _take, gateway, records, members, partial(_prepare, gateway)),
        "confluent-kafka": partial(_together, _take, broker, records, members, partial(_prepare, broker)),
    }
    middle = medians(in_turns(takes, rounds, warm_up=0))
    what = f"{records:,} records of 100 bytes, taken and accepted by {members} process(es)"
    return Row(what, {who: f"{records / seconds / 1000:,.0f} k/s" for who, seconds in middle.items()}, middle)


def _fill(address: str, records: int) -> None:
    client = confluent_kafka.Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        client.produce(_TOPIC, _VALUE, partition=number % 2)
        if number % 1_000 == 0:
            client.poll(0)
    assert client.flush(60) == 0


def _prepare_ours(cluster: str, group: str) -> None:
    with Cluster.open(cluster) as opened:
        alter_group_configs(opened.store, group, _OFFSETS)


def _prepare(address: str, group: str) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in _OFFSETS.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(30)


def _together(
    take: Callable[..., None], address: str, records: int, members: int, prepare: Callable[[str], None]
) -> float:
    """Return in how many seconds the members of a new group take all records, from the first poll that has some on."""
    group = f"group-{uuid.uuid4()}"
    prepare(group)
    context = multiprocessing.get_context("spawn")
    left, ends = context.Value("q", records), context.Queue()
    processes = [context.Process(target=take, args=(address, group, left, ends)) for _ in range(members)]
    for process in processes:
        process.start()
    times = [ends.get() for _ in processes]
    for process in processes:
        process.join()
    began = [first for first, _ in times if first is not None]
    return float(max(last for _, last in times if last is not None) - min(began))


def _take_ours(address: str, group: str, left: object, ends: object) -> None:
    with ShareConsumer(_TOPIC, cluster=address, group_id=group) as consumer:
        _count(lambda: sum(map(len, consumer.poll(500).values())), left, ends)
        consumer.commit_sync()


def _take_arrow(address: str, group: str, left: object, ends: object) -> None:
    with ShareConsumer(_TOPIC, cluster=address, group_id=group) as consumer:
        _count(lambda: sum(table.num_rows for table in consumer.poll_arrow(500).values()), left, ends)
        consumer.commit_sync()


def _take(address: str, group: str, left: object, ends: object) -> None:
    settings = {"bootstrap.servers": address, "group.id": group, "log_level": 3}  # without its note on the preview
    consumer = confluent_kafka.ShareConsumer(settings)
    consumer.subscribe([_TOPIC])
    _count(lambda: len(consumer.poll(0.5)), left, ends)
    consumer.close()


def _count(poll: Callable[[], int], left: object, ends: object) -> None:
    """Poll until the members together have taken all records."""
    first: float | None = None
    last: float | None = None
    while left.value > 0:  # type: ignore[attr-defined]
        began = time.time()
        if count := poll():
            first, last = first or began, time.time()
            with left.get_lock():  # type: ignore[attr-defined]
                left.value -= count  # type: ignore[attr-defined]
    ends.put((first, last))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
