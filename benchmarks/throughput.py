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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console

from benchmarks.kafka_report import parser, percentiles
from benchmarks.machine import seconds_of
from benchmarks.setup import medians, print_table, records, seconds_in_turns, write_input
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark import launcher
from spark_log.spark.datasource.read.read_topic import read_topic
from spark_log.tables.publication import delta_tables

TOPIC = "bench"
SEVEN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True)
class Result:
    """A row of the report. `ratio` is ours divided by the peer's speed; `bar` is what it should reach, if anything, or
    with `at_most` must not exceed.
    """

    what: str
    ours: str
    peer: str
    ratio: float | None = None
    bar: float | None = None
    at_most: bool = False


def main() -> None:
    options = parser(__doc__, rounds=9)
    options.add_argument("--records", type=int, default=2_000_000)
    options.add_argument("--partitions", type=int, default=4)
    options.add_argument("--only", nargs="*", choices=("write", "read", "transactions", "micro_batch"))
    arguments = options.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        bench = Bench(Path(name), arguments, console)
        results = bench.run()
    title = f"{arguments.records:,} records, {arguments.partitions} partitions, {arguments.rounds} rounds"
    print_results(title, results, arguments.json)


def print_results(title: str, results: Sequence[Result], json_file: str | None) -> None:
    """Print the results as a table, and write them to a file as JSON if one is named."""
    rows = []
    for each in results:
        bar = "" if each.bar is None else f"{'<=' if each.at_most else '>='} {each.bar}"
        rows.append((each.what, each.ours, each.peer, "" if each.ratio is None else f"{each.ratio:.2f}", bar))
    print_table(title, ("what", "ours", "peer", "ratio", "bar"), rows)
    if json_file:
        Path(json_file).write_text(json.dumps([asdict(each) for each in results], indent=1))


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
        write_input(self.input, self.records, self.arguments.partitions)
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
        for query_name, query, bar in (("noop", noop, 0.65), ("aggregate", aggregate, 0.5)):
            mine, theirs = self._compare(_query(query, self._ours), _query(query, parquet))
            results.append(self._ratio(f"read, 7 columns, {query_name} / spark.read.parquet", mine, theirs, bar))
        mine, theirs = self._compare(lambda: aggregate(self._ours(columns="value,offset")), _query(aggregate, parquet))
        results.append(self._ratio("read, columns=value,offset, aggregate / spark.read.parquet", mine, theirs, 0.6))
        for query_name, query in (("noop", noop), ("aggregate", aggregate)):
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
        record = records(pa.array([os.urandom(100)]), pa.array([b"key"]))
        taken_s = [seconds_of(lambda: log.append(topic, [Records(0, record)])) for _ in range(3_000)]
        end = log.positions(topic)[TopicPartition(topic.name, 0)].high_watermark
        assert end == 3_000
        log.close()
        return Result(f"append of 1 record, durable, {name}", percentiles(taken_s[200:]), "")

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
            log.append(topic, [Records(0, records(pa.array([str(number).encode()])))])
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
        middle = medians(seconds_in_turns({"ours": ours, "peer": peer}, self.rounds, 2))
        return middle["ours"], middle["peer"]

    def _ratio(self, what: str, mine: float, theirs: float, bar: float) -> Result:
        speed = [f"{self.records / seconds / 1e6:.2f} M/s" for seconds in (mine, theirs)]
        result = Result(what, speed[0], speed[1], theirs / mine, bar)
        self._step(f"{what}: {speed[0]} / {speed[1]} = {theirs / mine:.2f}")
        return result

    def _remove(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink()
        folder.rmdir()

    def _step(self, what: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {what}")


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def aggregate(frame: DataFrame) -> None:
    frame.agg(F.max("offset"), F.sum(F.length("value"))).collect()


def _query(query: Callable[[DataFrame], None], frame: Callable[[], DataFrame]) -> Callable[[], None]:
    return lambda: query(frame())


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


if __name__ == "__main__":
    main()
