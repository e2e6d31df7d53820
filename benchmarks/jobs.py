"""How fast jobs/produce.py and jobs/consume.py are, as ratios against the same queries on Parquet. `make bench-jobs`.

Input: --records rows of flights in one CSV file. `produce` writes them as JSON with key and timestamp, `consume` parses
the JSON and writes Parquet files. The peers run the same queries, from the same CSV file into Parquet files and from
these into Parquet files with the same columns. Each run is a program of its own, with a JVM of its own. Both take turns
--rounds times, and the medians of their seconds without the start of Spark are compared. With --jobs consume, produce
and its peer run once. Nothing here is a test.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console

from benchmarks.first import _cpu_seconds
from benchmarks.kafka_report import OURS, Row, parser, print_rows
from spark_log import Cluster, create_topic
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark import launcher

PARQUET = "Parquet"
BARS = {"produce": 0.8, "consume": 0.85}
TOPIC = "flights"
SCHEMA = "carrier STRING, flight INT, tailnum STRING, origin STRING, dep_delay INT, arr_delay INT, time_hour TIMESTAMP"
PRODUCE = ["--schema", SCHEMA, "--option", "header=true", "--key", "tailnum", "--timestamp", "time_hour"]
CONSUME = ["--value-schema", SCHEMA]
_FIRST_S = 1_356_998_400
"""2013-01-01 in seconds."""


@dataclass
class Run:
    """Seconds of a program without the start of Spark, and the CPU seconds of all its processes."""

    seconds: float
    cpu_seconds: float


def main() -> None:
    arguments = _arguments()
    if arguments.program:
        print(json.dumps(asdict(_program(arguments.program, Path(arguments.folder)))))
        return
    console = Console()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        _make_input(folder / "flights.csv", arguments.records)
        Cluster.init(str(folder / "cluster")).close()
        runs: dict[str, list[Run]] = {program: [] for program in PROGRAMS}
        for turn in range(arguments.rounds):
            for program in PROGRAMS:
                if turn and program.split()[0] not in arguments.jobs:
                    continue
                runs[program].append(_run(program, folder))
                shown = f"{runs[program][-1].seconds:.1f} s, CPU {runs[program][-1].cpu_seconds:.1f} s"
                console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] turn {turn + 1}: {program}: {shown}")
    rows = [_row(job, arguments.records, runs) for job in arguments.jobs]
    print_rows(f"jobs, {arguments.rounds} rounds, medians", rows, arguments.json)


def _row(job: str, records: int, runs: dict[str, list[Run]]) -> Row:
    of_job = {OURS: runs[job], PARQUET: runs[f"{job} parquet"]}
    seconds = {who: statistics.median(run.seconds for run in each) for who, each in of_job.items()}
    cpu_s = {who: statistics.median(run.cpu_seconds for run in each) for who, each in of_job.items()}
    shown = {who: f"{seconds[who]:.1f} s, CPU {cpu_s[who]:.1f} s" for who in of_job}
    return Row(f"jobs/{job}.py: {records:,} flights as JSON", shown, seconds).with_bar(OURS, BARS[job], PARQUET)


def _run(program: str, folder: Path) -> Run:
    """Run a program in a process of its own, with the recommended settings."""
    conf = Path(__file__).resolve().parents[1] / "conf" / "spark-defaults.conf"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": launcher.executable(),
        "PYSPARK_DRIVER_PYTHON": launcher.executable(),
        "PYSPARK_SUBMIT_ARGS": f"--driver-memory 3g --properties-file {conf} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOG_CLUSTER": str(folder / "cluster"),
    }
    command = [sys.executable, "-m", "benchmarks.jobs", "--program", program, "--folder", str(folder)]
    output = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    return Run(**json.loads(output.splitlines()[-1]))


def _program(program: str, folder: Path) -> Run:
    begun = _cpu_seconds()
    seconds = PROGRAMS[program](folder)
    return Run(seconds, _cpu_seconds() - begun)


def _produce(folder: Path) -> float:
    from spark_log.spark.jobs.produce import main as produce

    with Cluster.open(str(folder / "cluster")) as cluster:
        with contextlib.suppress(Exception):
            delete_topic(cluster, TOPIC)
        create_topic(cluster, TOPIC, 4, configs={"retention.ms": "-1"})
    return _job(produce, [TOPIC, str(folder / "flights.csv"), *PRODUCE])


def _consume(folder: Path) -> float:
    from spark_log.spark.jobs.consume import main as consume

    return _job(consume, ["--subscribe", TOPIC, *CONSUME, "--parquet", str(folder / "consumed"), "--mode", "overwrite"])


def _job(job: Callable[[list[str]], int], arguments: list[str]) -> float:
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert job([*arguments, "--json"]) == 0
    return float(json.loads(told.getvalue().splitlines()[-1])["seconds"])


def _produce_parquet(folder: Path) -> float:
    from spark_log.spark.jobs.produce import JOB
    from spark_log.spark.jobs.queries.produce_query import read, shape
    from spark_log.spark.jobs.session import start_session

    given = JOB.parse([TOPIC, str(folder / "flights.csv"), *PRODUCE])
    spark = start_session("produce parquet", delta=False)
    begin = time.perf_counter()
    rows = shape(read(spark, given), given.columns)
    rows.write.option("compression", "zstd").mode("overwrite").parquet(str(folder / "produced"))
    return time.perf_counter() - begin


def _consume_parquet(folder: Path) -> float:
    from spark_log.spark.jobs.session import start_session

    spark = start_session("consume parquet", delta=False)
    begin = time.perf_counter()
    rows = spark.read.parquet(str(folder / "produced"))
    value = F.from_json(
        F.col("value").cast("string"), f"{SCHEMA}, _malformed STRING", {"columnNameOfCorruptRecord": "_malformed"}
    )
    parsed = rows.select(
        F.col("key").cast("string").alias("_key"),
        F.lit(TOPIC).alias("_topic"),
        F.lit(0).alias("_partition"),
        F.monotonically_increasing_id().alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        value.alias("value"),
    )
    parsed.select(*(name for name in parsed.columns if name != "value"), "value.*").write.mode("overwrite").parquet(
        str(folder / "consumed-parquet")
    )
    return time.perf_counter() - begin


PROGRAMS = {
    "produce": _produce,
    "produce parquet": _produce_parquet,
    "consume": _consume,
    "consume parquet": _consume_parquet,
}


def _make_input(path: Path, records: int) -> None:
    random = np.random.default_rng(7)
    carriers, origins = np.array(["AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"]), np.array(["EWR", "JFK", "LGA"])
    tails = np.array([f"N{number:05d}" for number in range(4_000)])
    hours = _FIRST_S + (np.arange(records) * (365 * 24) // records) * 3600
    columns = {
        "carrier": carriers[random.integers(0, len(carriers), records)],
        "flight": random.integers(1, 9_000, records),
        "tailnum": tails[random.integers(0, len(tails), records)],
        "origin": origins[random.integers(0, len(origins), records)],
        "dep_delay": random.integers(-20, 300, records),
        "arr_delay": random.integers(-40, 320, records),
        "time_hour": pa.array(hours, pa.timestamp("s")).cast(pa.string()),
    }
    pyarrow.csv.write_csv(pa.table(columns), path)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.set_defaults(rounds=3)
    options.add_argument("--records", type=int, default=3_000_000)
    options.add_argument("--jobs", nargs="+", choices=list(BARS), default=list(BARS), help="which to compare")
    options.add_argument("--program", choices=list(PROGRAMS), help=argparse.SUPPRESS)
    return options.parse_args()


if __name__ == "__main__":
    main()
