"""A cluster with hostile names and bytes everywhere, for the pages of the console."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_log import Consumer, Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.measurement import task_records
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.ids import TopicPartition
from spark_log.maintenance.recorded_appends import append_records
from spark_log.replication.controller.topic_operations import create_topic

MARKUP = "<script>alert(1)</script>\"'&amp;<img src=x onerror=alert(2)>{{7*7}}"
TOPIC = "A.b_c-9--.." + "x" * 60
TYPED = "typed.topic"
GROUP = f"../{MARKUP}/ü\u202e%2F?#"
TRANSACTIONAL_ID = f"tx {MARKUP}"
KEYS = (b"", MARKUP.encode(), b"\x00\x01nul\x00", b"\xff\xfe\xc3(", "zürich €".encode(), None)
VALUES = (
    None,
    b"",
    MARKUP.encode(),
    b'{"a": "</script><script>alert(3)</script>", "n": 1, "ssn": "1"}',
    b"\x00" * 100,
    b"\xff\xfe\xc3( not UTF-8 \xed\xa0\x80",
    b"=1+1",
    b"x" * 1024 * 1024,
    "\u202eright to left\r\n\u2028".encode(),
)
EXAMPLES = {
    "topic": TOPIC, "group": GROUP, "partition": "0", "offset": "2", "transactional_id": TRANSACTIONAL_ID,
    "broker": "1", "query_id": MARKUP, "part": "value", "task": "seal",
    "name": "x", "producer_id": "0",
    "producer": "0", "config": "retention.ms", "chart": "lag",
}  # fmt: skip
"""A value for each name in the paths of pages."""


@contextmanager
def hostile_cluster(folder: Path) -> Iterator[Cluster]:
    """While it is open, a member of GROUP reads, and a transaction of TRANSACTIONAL_ID is open."""
    address = str(folder / "cluster")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.init(address))
        add_broker(cluster, 2, [str(folder / "broker-2")], rack="r2")
        create_topic(cluster, TOPIC, 3, 2, {"max.message.bytes": str(2**21)})
        schema = '{"type": "object", "properties": {"price": {"type": "number"}, "email": {"type": "string"}}}'
        typed = {"value.format": "json", "value.schema": schema}
        create_topic(cluster, TYPED, 1, 1, typed)
        create_topic(cluster, "empty", 1, 1)
        with Producer(cluster=address, client_id=MARKUP, max_request_size=2**21) as producer:
            for at, value in enumerate(VALUES):
                key = KEYS[at % len(KEYS)]
                producer.send(TOPIC, value, key, headers=[(MARKUP, MARKUP.encode()), ("", b"\xff\x00")], partition=0)
            producer.send(TYPED, b'{"price": 1.5, "email": "<b>a@example.org</b>"}', b"k")
            producer.send(TYPED, b"not JSON <script>", b"k")
        settings = {"group_id": GROUP, "client_id": MARKUP, "enable_auto_commit": False}
        member = stack.enter_context(Consumer(TOPIC, cluster=address, auto_offset_reset="earliest", **settings))
        member.poll(timeout_ms=1000)
        member.seek(TopicPartition(TOPIC, 0), 3)
        member.commit()
        writer = stack.enter_context(Producer(cluster=address, transactional_id=TRANSACTIONAL_ID))
        writer.init_transactions()
        writer.begin_transaction()
        writer.send(TOPIC, b"open", partition=1).get(60)
        report = {
            "kind": "query",
            "name": MARKUP,
            "query_name": MARKUP,
            "run_id": MARKUP,
            "state": "failed",
            "error": MARKUP,
        }
        append_records(cluster, METRICS, [Recorded(int(Kind.QUERY), MARKUP, report)])
        run = TaskRun(f"maintenance: {MARKUP}", "coordinator", 1, 1.0, MARKUP)
        append_records(cluster, METRICS, task_records([run], 0))
        yield cluster
