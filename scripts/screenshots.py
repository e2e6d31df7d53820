"""Makes the screenshots of the console's pages in docs/images/console, at two widths.

    python scripts/screenshots.py [--out docs/images/console] [--dark]

It fills a cluster in a temporary folder with orders, a group that lags, and a day of history, and visits each page of
the console with Debian's chromium.
"""

import argparse
import io
import json
import math
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spark_log import Consumer, Producer
from spark_log.clients.admin.audit import record_change
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.console.app import table
from spark_log.console.paths import url
from spark_log.console.routes import Allow
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded, find_recorded
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.recorded_appends import append_records
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.browser import WIDTHS, running_browser, visiting
from tests.support.console import EXAMPLES, running_console

GROUP, QUERY = "billing", "5f0c5d0e-8f5c-4b0e-9d55-3f0a3c8e1a11"
NAMES = {**EXAMPLES, "topic": "orders", "group": GROUP, "transactional_id": "billing-1", "query_id": QUERY}
STEP_MS = 10 * 60_000
SCHEMA = "order_id BIGINT, customer STRING, country STRING, price DOUBLE, items BIGINT"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/images/console")
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="console-")))
        cluster = filled_cluster(stack, folder)
        console = stack.enter_context(running_console(cluster, allow=frozenset(Allow)))
        browser = stack.enter_context(running_browser())
        for width in WIDTHS:
            visitor = stack.enter_context(
                visiting(browser, console.url, console.printed[-1], width, "dark" if arguments.dark else "light")
            )
            for view in table().views:
                status = visitor.open(url(view.path, None, **NAMES))
                visitor.page.wait_for_timeout(300)  # charts are drawn when their numbers have come
                shot = visitor.page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": 900})
                target = out / f"{file_name(view.path)}-{width}.png"
                Image.open(io.BytesIO(shot)).convert("RGB").quantize(48).save(target, optimize=True)
                print(f"{status} {view.path} {target} {target.stat().st_size:,} bytes")
    print(f"{sum(file.stat().st_size for file in out.glob('*.png')):,} bytes in all")
    return 0


def file_name(path: str) -> str:
    """`/topics/{topic}` as `topics-topic`; `/` as `overview`."""
    return path.strip("/").replace("/", "-").replace("{", "").replace("}", "") or "overview"


def filled_cluster(stack: ExitStack, folder: Path) -> Cluster:
    address = str(folder / "cluster")
    cluster = stack.enter_context(Cluster.init(address))
    for broker in (2, 3):
        add_broker(cluster, broker, [str(folder / f"broker-{broker}")], rack=f"rack-{broker}")
    create_topic(cluster, "orders", 4, 3, {"value.format": "json", "value.schema": SCHEMA, "retention.ms": "604800000"})
    create_topic(cluster, "payments", 2, 3, {"min.insync.replicas": "2"})
    for name in ("clicks", "customers", "shipments"):
        create_topic(cluster, name, 2, 2)
    stack.enter_context(Coordinator(cluster))
    with Producer(cluster=address) as producer:
        for i in range(4_000):
            order = {
                "order_id": 10_000 + i, "customer": f"customer-{i % 97}", "country": ("DE", "FR", "NL", "SE")[i % 4],
                "price": round(5 + 40 * abs(math.sin(i)), 2), "items": 1 + i % 5,
            }  # fmt: skip
            producer.send("orders", json.dumps(order).encode(), f"customer-{i % 97}".encode(), partition=i % 4)
            producer.send("clicks", f"/products/{i % 300}".encode(), str(i % 500).encode())
    member = stack.enter_context(
        Consumer("orders", cluster=address, group_id=GROUP, client_id="billing-worker", enable_auto_commit=False)
    )
    member.poll(timeout_ms=500)
    for partition, offset in enumerate((990, 1000, 640, 1000)):
        member.seek(TopicPartition("orders", partition), offset)
    member.commit()
    writer = stack.enter_context(Producer(cluster=address, transactional_id="billing-1"))
    writer.init_transactions()
    writer.begin_transaction()
    writer.send("payments", b'{"order_id": 10003, "paid": 12.5}').get(10)
    record_change(cluster, "ann", "/topics/{topic}/configs", "topic orders", {"retention.ms": "604800000"}, "succeeded",
                  "console")  # fmt: skip
    record_change(cluster, "bob", "/topics/{topic}/delete", "topic customers", {}, "refused", "console",
                  "Changes of topics are not allowed: your role lacks it.")  # fmt: skip
    record_history(cluster)
    return cluster


def record_history(cluster: Cluster) -> None:
    """A day of measurements, as a coordinator would have recorded them."""
    now_ms = cluster.store.now().wall_ms
    append_records(cluster, METRICS, [Recorded(int(Kind.CLUSTER), "", {"kind": "cluster", "interval_s": 0.001})])
    topic = find_recorded(cluster, METRICS)
    assert topic is not None
    times = [now_ms - 24 * 3_600_000 + at * STEP_MS for at in range(24 * 6)]
    day = [1 + math.sin(at / 144 * 2 * math.pi - 1.5) for at in range(len(times))]
    noise = [0.9 + 0.2 * abs(math.sin(at * 12.9)) for at in range(len(times))]
    of_kind: dict[Kind, list[dict[str, object]]] = {kind: [] for kind in Kind}
    for at in range(len(times)):
        rate = 400 * day[at] * noise[at]
        base = {"interval_s": 600.0, "appended": int(rate * 600), "rate": rate, "records": 4_000_000 + at * 1000,
                "offline": 0, "under_replicated": 0, "delta_lag_s": 2.0, "tail_bytes": 99, "bytes": 10**9}  # fmt: skip
        of_kind[Kind.CLUSTER].append(
            {"kind": "cluster", "name": "", **base, "topics": 5, "partitions": 14, "brokers": 3, "open_transactions": 1}
        )
        of_kind[Kind.TOPIC].append({"kind": "topic", "name": "orders", **base, "end_offset": at})
        lag = int(5_000 * max(0.0, day[at] - 1.5) * noise[at])
        groups = {"kind": "group", "name": GROUP, "committed": int(rate * 590), "lag": lag, "lag_s": lag / 50}
        of_kind[Kind.GROUP] += [{**groups, "members": 1}, {**groups, "topic": "orders"}]
        of_kind[Kind.QUERY].append(
            {"kind": "query", "name": QUERY, "query_name": "orders_by_country", "run_id": QUERY, "state": "running",
             "batch_id": at, "lag": lag // 2, "input_records": int(rate * 60), "input_rate": rate,
             "processed_rate": rate * 1.4, "batch_s": 1.2 * noise[at], "state_rows": 500 + at, "state_bytes": 2**20}
        )  # fmt: skip
    failure = "log dir /mnt/d2: read-only"
    for task, hour, error in (("seal", 1, None), ("merge", 3, None), ("compact", 5, failure), ("retention", 6, None)):
        start_ms = now_ms - hour * 3_600_000
        of_kind[Kind.TASK].append(
            {"kind": "task", "name": f"maintenance: {task}", "lease": "c", "start_ms": start_ms, "seconds": 0.4,
             "outcome": "failed" if error else "succeeded", "error": error, "notes": "" if error else "orders: 3 files"}
        )  # fmt: skip
    log = ClientLog(cluster, internal=True)
    for kind, rows in of_kind.items():
        per_time = max(1, len(rows) // len(times))
        stamps = [
            times[i // per_time] if len(rows) >= len(times) else int(str(rows[i]["start_ms"])) for i in range(len(rows))
        ]
        log.append(topic, [Records(int(kind), json_table(rows, stamps))])
    log.close()


def json_table(rows: list[dict[str, object]], times_ms: list[int]) -> pa.Table:
    times = pa.array([time_ms * 1000 for time_ms in times_ms]).cast(RECORD_SCHEMA.field("timestamp").type)
    values = pa.array(
        [json.dumps({name: value for name, value in row.items() if value is not None}).encode() for row in rows]
    )
    keys = pa.array([str(row["name"]).encode() for row in rows])
    return pa.table([keys, values, pa.nulls(len(rows)), times], names=RECORD_SCHEMA.names).cast(RECORD_SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
