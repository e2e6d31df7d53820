"""How long a person waits for the first results of a session, as a ratio against plain Parquet in the same run.
`make bench-first`.

Each measurement is a program of its own, with a JVM of its own. In one session, it runs a job and writes Parquet files
without spark-log, as a notebook has done before. Then it writes 1,000 rows, reads them, runs a stream with AvailableNow
from them to Parquet files, and repeats each. At last it stops the session, and reads in a new one after its first job.
The same program runs on Parquet files as the peer. Both take turns --rounds times, and the medians are compared; the
start of a session is not included. A further run of each counts the Python processes that Spark starts, with their CPU
seconds. Nothing here is a test.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.kafka_report import parser
from benchmarks.machine import cpu_s
from benchmarks.throughput import Result, print_results, spark_session

ROWS = 1_000
TOPIC = "events"
BARS = {"first write": 1.6, "first read": 1.2, "first stream": 1.5, "second stream": 1.5, "read after stop()": 1.2}
"""At most so many times the seconds of Parquet."""
SIDES = ("spark-log", "parquet")
_SAMPLE_S = 0.01


@dataclass
class Step:
    """One operation: its seconds, the CPU seconds of all its processes (with the JVM), and the Python processes that
    began during it, as module -> CPU seconds of each.
    """

    name: str
    seconds: float
    cpu_seconds: float
    processes: dict[str, list[float]] = field(default_factory=dict)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--program", choices=SIDES, help=argparse.SUPPRESS)
    options.add_argument("--processes", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.program:
        steps = Program(Path(arguments.folder), arguments.program, arguments.processes).run()
        print(json.dumps([asdict(step) for step in steps]))
        return
    console = Console()
    measured: dict[str, list[list[Step]]] = {side: [] for side in SIDES}
    for turn in range(arguments.rounds):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            steps = _run_program(side, arguments)
            measured[side].append(steps)
            shown = ", ".join(f"{step.name} {step.seconds:.2f} ({step.cpu_seconds:.1f})" for step in steps)
            console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {side}: {shown} s")
    results = [_result(at, measured) for at in range(len(measured[SIDES[0]][0]))]
    print_results(f"{ROWS:,} rows, {arguments.rounds} rounds, medians", results, arguments.json)
    for side in SIDES:
        console.print(_processes(side, _run_program(side, arguments, "--processes")))


def _run_program(side: str, arguments: argparse.Namespace, *options: str) -> list[Step]:
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as folder:
        command = [sys.executable, "-m", "benchmarks.first", "--program", side, "--folder", folder, *options]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Step(**step) for step in json.loads(output.splitlines()[-1])]


def _result(at: int, measured: dict[str, list[list[Step]]]) -> Result:
    ours, peer = ([steps[at] for steps in measured[side]] for side in SIDES)
    ratio = _median(ours, "seconds") / _median(peer, "seconds")
    our_text, peer_text = (
        f"{_median(steps, 'seconds'):.2f} s, CPU {_median(steps, 'cpu_seconds'):.1f} s" for steps in (ours, peer)
    )
    return Result(ours[0].name, our_text, peer_text, ratio, BARS.get(ours[0].name), at_most=True)


def _median(steps: list[Step], name: str) -> float:
    return float(statistics.median(getattr(step, name) for step in steps))


def _processes(side: str, steps: list[Step]) -> Table:
    table = Table(title=f"Python processes that began during each step, {side}")
    for column in ("what", "processes", "CPU seconds of each"):
        table.add_column(column)
    for step in steps:
        seconds = [f"{name}: {', '.join(f'{each:.2f}' for each in cpu)}" for name, cpu in step.processes.items()]
        table.add_row(step.name, str(sum(map(len, step.processes.values()))), "\n".join(seconds))
    return table


class Program:
    """The operations of one session, on one side."""

    def __init__(self, folder: Path, side: str, count_processes: bool) -> None:
        self.folder, self.side, self.count_processes = folder, side, count_processes
        self.address = str(folder / "cluster")
        self.files = str(folder / "files")
        self.steps: list[Step] = []

    def run(self) -> list[Step]:
        from spark_log import Cluster, create_topic

        with Cluster.init(self.address) as cluster:
            create_topic(cluster, TOPIC)
        self._step("session", lambda: spark_session(self.folder))
        spark = SparkSession.active()
        self._step("first job", lambda: self._job(spark))
        for turn in ("first", "second"):
            self._step(f"{turn} write", lambda: self._write(spark))
            self._step(f"{turn} read", lambda: self._read(spark))
            self._step(f"{turn} stream", partial(self._stream, spark, turn))
        spark.stop()
        self._step("second session", lambda: spark_session(self.folder))
        spark = SparkSession.active()
        self._step("its first job", lambda: self._job(spark))
        self._step("read after stop()", lambda: self._read(spark))
        spark.stop()
        return self.steps

    def _job(self, spark: SparkSession) -> None:
        spark.range(ROWS).write.mode("overwrite").parquet(str(self.folder / "others"))
        assert spark.read.parquet(str(self.folder / "others")).count() == ROWS

    def _write(self, spark: SparkSession) -> None:
        rows = spark.range(ROWS).selectExpr("CAST(id AS string) key", "CAST(id AS string) value")
        if self.side == "spark-log":
            rows.write.format("spark_log").options(cluster=self.address, topic=TOPIC).mode("append").save()
        else:
            rows.write.mode("append").parquet(self.files)

    def _read(self, spark: SparkSession) -> None:
        if self.side == "spark-log":
            rows = spark.read.format("spark_log").options(cluster=self.address, subscribe=TOPIC).load()
        else:
            rows = spark.read.parquet(self.files)
        assert len(rows.collect()) % ROWS == 0

    def _stream(self, spark: SparkSession, turn: str) -> None:
        source: DataFrame
        if self.side == "spark-log":
            reader = spark.readStream.format("spark_log").option("startingOffsets", "earliest")
            source = reader.options(cluster=self.address, subscribe=TOPIC).load().select("key", "value")
        else:
            source = spark.readStream.schema("key STRING, value STRING").parquet(self.files)
        writer = source.writeStream.option("checkpointLocation", str(self.folder / f"checkpoint-{turn}"))
        query = writer.trigger(availableNow=True).start(str(self.folder / f"copied-{turn}"), format="parquet")
        query.awaitTermination()
        assert sum(progress.numInputRows for progress in query.recentProgress) % ROWS == 0

    def _step(self, name: str, run: Callable[[], object]) -> None:
        with _python_processes() if self.count_processes else _nothing() as processes:
            begin, cpu_begin = time.perf_counter(), _cpu_seconds()
            run()
            seconds, cpu_seconds = time.perf_counter() - begin, _cpu_seconds() - cpu_begin
        self.steps.append(Step(name, seconds, cpu_seconds, processes))


@contextmanager
def _nothing() -> Iterator[dict[str, list[float]]]:
    yield {}


@contextmanager
def _python_processes() -> Iterator[dict[str, list[float]]]:
    """The Python processes below this one that begin inside the block: module -> CPU seconds of each. Sampled."""
    before, found, stop = set(_descendants()), dict[int, tuple[str, float]](), threading.Event()

    def watch() -> None:
        while True:
            for pid in _descendants():
                if pid not in before and (seen := _python_process(pid)):
                    found[pid] = seen
            if stop.wait(_SAMPLE_S):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    by_module: dict[str, list[float]] = {}
    try:
        yield by_module
    finally:
        stop.set()
        thread.join()
        for module, seconds in found.values():
            by_module.setdefault(module, []).append(round(seconds, 2))


def _descendants() -> list[int]:
    pids, at = [os.getpid()], 0
    while at < len(pids):
        for task in Path(f"/proc/{pids[at]}/task").glob("*/children"):
            try:
                pids.extend(map(int, task.read_text().split()))
            except OSError:
                continue
        at += 1
    return pids[1:]


def _python_process(pid: int) -> tuple[str, float] | None:
    """Module and CPU seconds; None for other programs and for those that have ended. A fork has its parent's name."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        seconds = cpu_s(pid)
    except OSError:
        return None
    if "python" not in words[0] or "-m" not in words:
        return None
    return " ".join(word for word in words[words.index("-m") + 1 :] if word), seconds


def _cpu_seconds() -> float:
    """Of this process, its descendants, and those of them that have ended and were waited for."""
    seconds = 0.0
    for pid in [os.getpid(), *_descendants()]:
        with suppress(OSError):
            seconds += cpu_s(pid, ended=True)
    return seconds


if __name__ == "__main__":
    main()
