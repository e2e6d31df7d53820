"""`spark-log table`, as its users meet it."""

import json
import re
from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from tests.cli.conftest import ok, run
from tests.support.topics import append, find, make

CONFIGS = {
    "inline_max_bytes": "0",
    "cleanup_policy": "compact",
    "table_formats": "delta,iceberg",
    "table_current": "delta",
}


@pytest.fixture
def tables(cluster: Path) -> dict[str, Path]:
    """The folders of the tables of topic t, which has four records of two keys."""
    with Cluster.open(str(cluster)) as opened:
        make(opened, "t", 2, **CONFIGS)
        log = ClientLog(opened)
        for key, value in ((b"a", "1"), (b"b", "2"), (b"a", "3")):
            append(log, "t", value, key=key)
        append(log, "t", "4", key=b"c", partition=1)
        log.close()
    rows = json.loads(ok("table", "describe", "t", "--json", cluster=cluster))
    return {row["target"]: Path(row["location"]) for row in rows}


def test_describe_shows_each_table(cluster: Path, tables: dict[str, Path]) -> None:
    shown = ok("table", "describe", "t", cluster=cluster)
    for target in ("delta", "iceberg", "current"):
        (row,) = [line.split("│") for line in shown.splitlines() if re.match(rf"│ {target} ", line)]
        cells = [cell.strip() for cell in row[1:-1]]
        assert (cells[1], cells[3], cells[5]) == ("1", "4", "up to date"), shown
        assert f"{target}: {tables[target]}" in " ".join(shown.split())
    assert tables["current"] == tables["delta"] / "_current"


def test_verify_finds_equal_tables(cluster: Path, tables: dict[str, Path]) -> None:
    rows = json.loads(ok("table", "verify", "t", "--json", cluster=cluster))
    assert {row["target"]: (row["records"], row["difference"]) for row in rows} == {
        "delta": (4, None),
        "iceberg": (4, None),
        "current": (3, None),
    }
    shown = ok("table", "verify", "t", "--target", "current", cluster=cluster)
    assert shown.replace("\n", " ").strip().endswith("3 records, equal to the log")


def test_verify_names_the_first_difference(cluster: Path, tables: dict[str, Path]) -> None:
    """A vector that hides another row, and a Delta log that lost a file."""
    (vectors,) = tables["current"].glob("*.bin")
    content = bytearray(vectors.read_bytes())
    content[-6] ^= 1
    vectors.write_bytes(content)
    wrong = run("table", "verify", "t", "--target", "current", cluster=cluster)
    assert wrong.exit_code == 1
    assert "NOT EQUAL: partition 0" in wrong.stdout.replace("\n", " "), wrong.stdout
    assert "checksum" in wrong.stdout.replace("\n", " ")

    *_, last = sorted((tables["delta"] / "_delta_log").glob("*.json"))
    lines = last.read_text().splitlines()
    (added,) = [line for line in lines if '"add"' in line]
    last.write_text("\n".join(line for line in lines if line != added) + "\n")
    partition = json.loads(added)["add"]["partitionValues"]["partition"]
    wrong = run("table", "verify", "t", "--target", "delta", cluster=cluster)
    assert wrong.exit_code == 1
    text = " ".join(wrong.stdout.split())
    assert f"NOT EQUAL: partition {partition}, offset" in text and "the table lacks the record" in text, text


def test_rebuild_makes_the_table_anew(cluster: Path, tables: dict[str, Path]) -> None:
    for target in ("current", "iceberg"):
        for file in tables["current"].rglob("*") if target == "current" else tables["iceberg"].glob("metadata/*"):
            if file.is_file():
                file.write_bytes(b"damaged")
        if target == "iceberg":  # publication writes a torn Delta log anew
            assert run("table", "verify", "t", "--target", target, cluster=cluster).exit_code == 1
        asked = run("table", "rebuild", "t", "--target", target, stdin="n\n", cluster=cluster)
        assert asked.exit_code == 1 and f"Delete the {target} tables of t, and write them anew?" in asked.stderr
        assert ok("table", "rebuild", "t", "--target", target, "--yes", cluster=cluster) == (
            f"Rebuilt 1 {target} table of topic t.\n"
        )
        ok("table", "verify", "t", cluster=cluster)


def test_mistakes_have_answers(cluster: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        make(opened, "plain")
        assert find(opened, "plain")
    none = run("table", "verify", "plain", "--target", "iceberg", cluster=cluster)
    assert (none.exit_code, none.stderr) == (1, "Topic plain has no iceberg table.\n")
    none = run("table", "rebuild", "plain", "--target", "current", "--yes", cluster=cluster)
    assert none.exit_code == 1 and "table.current" in none.stderr
    assert run("table", "rebuild", "plain", "--target", "delta", cluster=cluster).exit_code == 2
    unknown = run("table", "describe", "no-such-topic", cluster=cluster)
    assert unknown.exit_code == 1 and "no-such-topic" in unknown.stderr
