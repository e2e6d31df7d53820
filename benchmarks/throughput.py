"""How fast the log reads and writes, as ratios against plain Parquet in the same run. `make bench`.

Input: --records rows with a key of ~11 bytes and an incompressible value of 100 bytes, in --partitions Parquet files.
Each pair of competitors takes turns --rounds times after warm-ups, and the medians are compared, so that a slow moment
of the machine meets both. Nothing here is a test; the bars are printed beside what was measured.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark import launcher
from spark_log.spark.datasource.read.read_topic import read_topic
from spark_log.tables.publication import delta_tables

TOPIC = "bench"
SEVEN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True)
class Result:
    """A row of the report. `ratio` is ours divided by the peer's speed; `bar` is what it should reach, if anything."""

    what: str
    ours: str
    peer: str
    ratio: float | None = None
    bar: float | None = None


def main() -> None:
    arguments = _arguments()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        bench = Bench(Path(name), arguments, console)
        results = bench.run()
    table = Table(title=f"{arguments.records:,} records, {arguments.partitions} partitions, {arguments.rounds} rounds")
    for column in ("what", "ours", "peer", "ratio", "bar"):
        table.add_column(column)
    for row in results:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.what, row.ours, row.peer, ratio, "" if row.bar is None else f">= {row.bar}")
    console.print(table)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(row) for row in results], indent=1))


class Bench:
    """One run, in one folder, on one Spark session."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, console: Console) -> None:
        self.folder, self.arguments, self.console = folder, arguments, console
        self.records, self.rounds = arguments.records, arguments.rounds
        self.address = str(folder / "cluster")
        self.cluster = Cluster.init(self.address)
        self.spark = spark_session(folder)
        self.input = folder / "input"

    def run(self) -> list[Result]:
        self._step("making input")
        self._make_input()
        results: list[Result] = []
        for part in (self._write, self._read, self._transactions, self._micro_batch):
            if self.arguments.only and part.__name__.strip("_") not in self.arguments.only:
                continue
            self._step(part.__name__.strip("_"))
            results += part()
        self.spark.stop()
        return results

    def _write(self) -> list[Result]:
        source = self.spark.read.parquet(str(self.input))
        number = iter(range(10_000))

        def ours() -> None:
            topic = create_topic(self.cluster, f"write-{next(number)}", self.arguments.partitions)
            writer = source.write.format("spark_log").option("cluster", self.address).option("topic", topic.name)
            writer.mode("append").save()

        def peer() -> None:
            target = self.folder / f"parquet-{next(number)}"
            source.write.option("compression", "zstd").parquet(str(target))
            self._remove(target)

        mine, theirs = self._compare(ours, peer)
        return [self._ratio("batch write, keyed, durable / df.write.parquet, zstd", mine, theirs, 1.0)]

    def _read(self) -> list[Result]:
        topic = create_topic(self.cluster, TOPIC, self.arguments.partitions)
        source = self.spark.read.parquet(str(self.input))
        source.write.format("spark_log").option("cluster", self.address).option("topic", TOPIC).mode("append").save()
        parquet = partial(self._parquet, topic)
        scanned = partial(read_topic, self.spark, self.address, TOPIC)
        results = []
        for query_name, query, bar in (("noop", _noop, 0.65), ("aggregate", _aggregate, 0.5)):
            mine, theirs = self._compare(_query(query, self._ours), _query(query, parquet))
            results.append(self._ratio(f"read, 7 columns, {query_name} / spark.read.parquet", mine, theirs, bar))
        mine, theirs = self._compare(
            lambda: _aggregate(self._ours(columns="value,offset")), _query(_aggregate, parquet)
        )
        results.append(self._ratio("read, columns=value,offset, aggregate / spark.read.parquet", mine, theirs, 0.6))
        for query_name, query in (("noop", _noop), ("aggregate", _aggregate)):
            mine, theirs = self._compare(_query(query, scanned), _query(query, parquet))
            results.append(self._ratio(f"read_topic, {query_name} / spark.read.parquet", mine, theirs, 0.9))
        return results

    def _transactions(self) -> list[Result]:
        results = [self._append_latency("SQLite", self.address)]
        if self.arguments.postgresql:
            results.append(self._append_latency("PostgreSQL", self.arguments.postgresql))
        return results

    def _append_latency(self, name: str, address: str) -> Result:
        cluster = self.cluster
        if address != self.address:
            cluster = Cluster.init(address, log_dir=str(self.folder / "postgresql-log-dir"))
        topic = create_topic(cluster, f"latency-{name.lower()}", 1)
        log = ClientLog(cluster)
        record = pa.table(
            {
                "key": pa.array([b"key"], pa.binary()),
                "value": pa.array([os.urandom(100)], pa.binary()),
                "headers": pa.nulls(1, RECORD_SCHEMA.field("headers").type),
                "timestamp": pa.array([1_700_000_000_000_000], RECORD_SCHEMA.field("timestamp").type),
            },
            schema=RECORD_SCHEMA,
        )
        times_ms = []
        for _ in range(3_000):
            begin = time.perf_counter()
            log.append(topic, [Records(0, record)])
            times_ms.append((time.perf_counter() - begin) * 1000)
        end = log.positions(topic)[TopicPartition(topic.name, 0)].high_watermark
        assert end == 3_000
        log.close()
        settled = sorted(times_ms[200:])
        p50, p99 = settled[len(settled) // 2], settled[int(len(settled) * 0.99)]
        return Result(f"append of 1 record, durable, {name}", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms", "")

    def _micro_batch(self) -> list[Result]:
        create_topic(self.cluster, "ticks", 1)
        log = ClientLog(self.cluster)
        topic = log.find_topic("ticks")
        options = {"cluster": self.address, "subscribe": "ticks", "startingOffsets": "earliest"}
        checkpoint = str(self.folder / "micro-batch")
        stream = self.spark.readStream.format("spark_log").options(**options).load()
        query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        times_ms = []
        for number in range(40):
            value = pa.array([str(number).encode()], pa.binary())
            columns = [pa.nulls(1, pa.binary()), value, pa.nulls(1, RECORD_SCHEMA.field("headers").type)]
            stamp = pa.array([1_700_000_000_000_000], RECORD_SCHEMA.field("timestamp").type)
            log.append(topic, [Records(0, pa.table([*columns, stamp], schema=RECORD_SCHEMA))])
            query.processAllAvailable()
            progress = query.lastProgress
            assert progress is not None
            times_ms.append(progress["durationMs"]["triggerExecution"])
        query.stop()
        log.close()
        return [Result("micro-batch of 1 record into noop", f"median {statistics.median(times_ms[10:]):.0f} ms", "")]

    def _ours(self, **options: str) -> DataFrame:
        reader = self.spark.read.format("spark_log").option("cluster", self.address).option("subscribe", TOPIC)
        return reader.options(**options).load()

    def _parquet(self, topic: Topic) -> DataFrame:
        """The same files and columns on Spark's own scan; base offsets left out, which favours the peer."""
        [table] = delta_tables(self.cluster, topic).values()
        files = sorted(str(path) for path in Path(table).glob("_segments/*/*.parquet"))
        frame = self.spark.read.parquet(*files)
        return frame.select(
            "key",
            "value",
            F.lit(TOPIC).alias("topic"),
            F.lit(0).alias("partition"),
            (F.col("offset_delta") + F.lit(0).cast("long")).alias("offset"),
            "timestamp",
            F.lit(0).alias("timestampType"),
        )

    def _compare(self, ours: Callable[[], None], peer: Callable[[], None]) -> tuple[float, float]:
        """Median seconds of both, taking turns, after two warm-ups each: the JVM compiles what it has seen often."""
        for _ in range(2):
            ours()
            peer()
        mine, theirs = [], []
        for _ in range(self.rounds):
            mine.append(_seconds(ours))
            theirs.append(_seconds(peer))
        return statistics.median(mine), statistics.median(theirs)

    def _ratio(self, what: str, mine: float, theirs: float, bar: float) -> Result:
        speed = [f"{self.records / seconds / 1e6:.2f} M/s" for seconds in (mine, theirs)]
        result = Result(what, speed[0], speed[1], theirs / mine, bar)
        self._step(f"{what}: {speed[0]} / {speed[1]} = {theirs / mine:.2f}")
        return result

    def _make_input(self) -> None:
        self.input.mkdir()
        random = np.random.default_rng(7)
        rows = self.records // self.arguments.partitions
        for number in range(self.arguments.partitions):
            values = pa.py_buffer(random.integers(0, 256, size=rows * 100, dtype=np.uint8).tobytes())
            offsets = pa.py_buffer(np.arange(0, rows * 100 + 1, 100, dtype=np.int32).tobytes())
            keys = pa.array([b"key-%07d" % key for key in random.integers(0, 1_000_000, rows).tolist()], pa.binary())
            table = pa.table({"key": keys, "value": pa.Array.from_buffers(pa.binary(), rows, [None, offsets, values])})
            pq.write_table(table, self.input / f"{number}.parquet", compression="none", use_dictionary=False)

    def _remove(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink()
        folder.rmdir()

    def _step(self, what: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {what}")


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _aggregate(frame: DataFrame) -> None:
    frame.agg(F.max("offset"), F.sum(F.length("value"))).collect()


def _query(query: Callable[[DataFrame], None], frame: Callable[[], DataFrame]) -> Callable[[], None]:
    return lambda: query(frame())


def _seconds(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def spark_session(folder: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the recommended settings, for both sides of a comparison, and `more`."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = launcher.executable()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        **_recommended(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(more or {}),
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("spark-log benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _recommended() -> dict[str, str]:
    """The settings of conf/spark-defaults.conf: what we measure is what we recommend, for both sides."""
    text = (Path(__file__).resolve().parents[1] / "conf" / "spark-defaults.conf").read_text()
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in lines}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--postgresql", help="URL of an empty PostgreSQL database, to measure its append transaction")
    parser.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    parser.add_argument("--json", help="write the results to this file as well")
    parser.add_argument("--only", nargs="*", choices=("write", "read", "transactions", "micro_batch"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
