"""The programs in examples/, run as their texts say: they print the promised output."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from tests.support.s3 import S3Server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., list[str]]


def load(name: str) -> ModuleType:
    """The example as a module, whose `main` runs in this process."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a program in this process, with the Spark session of the tests, and returns its output lines."""

    def run(name: str, *arguments: object) -> list[str]:
        load(name).main([str(argument) for argument in arguments])
        return capsys.readouterr().out.splitlines()

    return run


def rows(printed: Sequence[str], first_column: str) -> list[list[str]]:
    """The rows of the tables that DataFrame.show printed and whose header begins with `first_column`."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed if line.startswith("|")]
    return [row for row in cells if row[0] != first_column]


@pytest.mark.slow
def test_iot_windows_writes_each_hour_once_and_drops_the_late_reading(run: Run, tmp_path: Path) -> None:
    printed = run("iot_windows", "--cluster", tmp_path / "iot", "--delta", tmp_path / "hours")
    assert printed[:2] == ["run 1: 0 late readings dropped", "run 2: 1 late reading dropped"]
    found = rows(printed, "hour")
    hours = [f"2026-01-01 0{hour}:00:00" for hour in range(3)]
    assert [row[:3] for row in found] == [[hour, sensor, "4"] for hour in hours for sensor in ("attic", "cellar")]
    assert found[0] == [hours[0], "attic", "4", "10.75", "11.5"], "without the late reading of 99 degrees"
    assert printed[-1] == "6 rows in the Delta table"


@pytest.mark.slow
def test_order_billing_bills_every_order_once_although_a_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "order_billing.py", "--cluster", tmp_path / "shop"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    crash, recovery, _, *bills, summary = ended.stdout.splitlines()
    assert crash == "crash:    process 1 was killed by SIGKILL; bills that readers see: 1 2 3 4"
    assert recovery == "recovery: process 2 billed 8 orders in 2 transactions"
    assert [bill.split()[0] for bill in bills] == [str(number) for number in range(1, 13)]
    assert summary == "12 orders, 12 bills, no order billed twice"


@pytest.mark.slow
def test_queue_workers_do_every_job_but_one_although_a_worker_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "queue_workers.py", "--cluster", tmp_path / "queue"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr
    printed = ended.stdout.splitlines()
    assert printed[:2] == ["worker 1 was killed by SIGKILL", "39 of 40 jobs are done"]
    assert rows(printed, "value") == [['{"job":13}', "delivery-count", "3"]]


@pytest.mark.slow
def test_change_data_reads_the_current_table_back(run: Run, tmp_path: Path) -> None:
    printed = run("change_data", "--cluster", tmp_path / "crm")
    assert [line for line in printed if line.startswith("batch")] == [
        "batch 1: changes 1, 2 and 4 written",
        "batch 2: changes 5, 7 and 8 written",
    ]
    assert rows(printed, "id")[3:] == [
        ["2", "Grace", "Washington"],
        ["3", "Edsger", "Austin"],
        ["4", "Barbara", "Boston"],
    ]
    assert printed[-1] == "6 records in the topic, 3 rows in the table"


def test_moved_from_kafka_runs_on_spark_log_with_the_options_of_the_kafka_connector(run: Run, tmp_path: Path) -> None:
    found = rows(run("moved_from_kafka", "--cluster", tmp_path / "bank"), "topic")
    assert [row[:2] for row in found] == [
        [topic, partition] for topic in ("large-payments", "payments") for partition in "01"
    ]
    assert sum(int(records) for _, _, records, _ in found[2:]) == 100
    assert all(int(last) == int(records) - 1 for _, _, records, last in found)


def test_mirror_to_s3_copies_every_record_to_its_offset(
    s3_server: S3Server, s3_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--cluster", str(tmp_path / "source"), "--to-cluster", str(tmp_path / "target")]
    load("mirror_to_s3").main([*folders, "--log-dir", s3_uri])
    assert capsys.readouterr().out.splitlines() == [
        "mirrored 3000 records",
        "mirrored 10 records",
        *(f"partition {n}: 1505 records, offsets 0 to 1504, the same in both clusters" for n in range(2)),
    ]
    folder = s3_uri.split("?")[0].rsplit("/")[-1]
    stored = s3_server.client().list_objects_v2(Bucket=s3_server.bucket, Prefix=folder)["Contents"]
    assert any(each["Key"].endswith(".parquet") for each in stored)


def test_mirror_to_s3_runs_with_a_folder_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--cluster", str(tmp_path / "source"), "--to-cluster", str(tmp_path / "target")]
    load("mirror_to_s3").main([*folders, "--log-dir", str(tmp_path / "files")])
    assert capsys.readouterr().out.startswith("mirrored 3000 records\n")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_listed_and_uses_public_names_only(path: Path) -> None:
    assert f"[{path.name}]({path.name})" in (EXAMPLES / "README.md").read_text()
    imports = [
        line for line in path.read_text().splitlines() if line.startswith(("from spark_log", "import spark_log"))
    ]
    assert imports
    for line in imports:
        assert line.split()[1] in ("spark_log", "spark_log.spark.streams", "spark_log.clients.kafka"), line
