"""`spark-log schema …` and `spark-log topic bad-records`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_log.cli.main import app
from spark_log.cli.topics import bad_records
from spark_log.clients.produce.future import TableFuture
from spark_log.cluster.cluster import Cluster
from spark_log.errors import DiskFullError
from tests.support.schemas import SHOP_DESCRIPTOR_SET

DOCUMENTS = [{"item": "tea", "price": 4.5, "at": "2026-11-01T10:00:00Z"}, {"item": "cup", "lines": [{"n": 1}]}]


@pytest.fixture
def run(tmp_path: Path):
    address = str(tmp_path / "cluster")
    Cluster.init(address).close()

    def invoke(*arguments: str, lines: str = "", fails: bool = False) -> str:
        done = CliRunner().invoke(app, [*arguments, "--cluster", address], input=lines)
        assert (done.exit_code != 0) == fails, done.output
        return done.stderr if fails else done.stdout

    invoke("topic", "create", "orders")
    return invoke


def test_an_inferred_schema_can_be_set_and_changed(run, tmp_path: Path) -> None:
    run("produce", "orders", lines="\n".join(map(json.dumps, DOCUMENTS)))
    assert "no typed columns" in run("schema", "show", "orders")
    ddl = run("schema", "infer", "orders")
    assert ddl == "item STRING, price DOUBLE, at TIMESTAMP, lines ARRAY<STRUCT<n: BIGINT>>\n"
    (tmp_path / "orders.ddl").write_text(ddl)
    assert "New columns: item, price, at, lines" in run("schema", "set", "orders", f"@{tmp_path}/orders.ddl")
    assert "record.lines" in run("schema", "show", "orders")
    dry = json.loads(run("schema", "set", "orders", ddl + ", note STRING", "--dry-run", "--json"))
    assert dry == {"topic": "orders", "version": 2, "added": ["note"], "reset": {}, "dry_run": True}
    assert json.loads(run("schema", "show", "orders", "--json"))["version"] == 1
    assert "item: the column is STRING, not BIGINT" in run("schema", "set", "orders", "item INT", fails=True)
    dry = run("schema", "set", "orders", "item INT", "--reset", "--dry-run")
    assert "New columns: item__v2." in dry and "Field item is column item__v2 from now on" in dry
    assert "item__v2" not in run("schema", "show", "orders")
    run("schema", "set", "orders", "item INT", "--reset")
    shown = json.loads(run("schema", "show", "orders", "--json"))
    assert (shown["renamed"], shown["replaced"]) == ({"item": "item__v2"}, ["item"])


def test_the_schema_of_keys_has_commands_of_its_own(run) -> None:
    run("produce", "orders", "--key-separator", ";", lines='{"id": 1};x\n')
    ddl = run("schema", "infer", "orders", "--key")
    assert ddl == "id BIGINT\n"
    assert "The keys of orders have no typed columns" in run("schema", "show", "orders", "--key")
    assert "New columns: id." in run("schema", "set", "orders", "--key", ddl)
    assert "key_record.id" in run("schema", "show", "orders", "--key")
    assert "Only the keys of orders have typed columns: see --key." in run("schema", "show", "orders")
    assert "id: the column is BIGINT, not STRING" in run("schema", "set", "orders", "--key", "id STRING", fails=True)
    reset = json.loads(run("schema", "set", "orders", "--key", "id STRING", "--reset", "--json"))
    assert reset == {"topic": "orders", "version": 2, "added": ["id__v2"], "reset": {"id": "id__v2"}, "dry_run": False}
    assert "key.schema" in run("topic", "describe", "orders")


def test_a_protobuf_message_of_a_descriptor_set_is_a_schema(run, tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(SHOP_DESCRIPTOR_SET)
    run("topic", "create", "shop", "-c", "value.format=protobuf", "-c", f"value.schema=@{file}#shop.Order")
    assert "record.prices" in run("schema", "show", "shop")
    run("topic", "alter", "shop", "-c", "key.format=protobuf", "-c", f"key.schema=@{file}#shop.Order")
    assert "key_record.prices" in run("schema", "show", "shop", "--key")
    described = run("topic", "describe", "shop")
    assert '{"message": "shop.Order", "descriptor": ' in described and len(described) < 3_000
    assert "No new columns" in run("schema", "set", "shop", f"@{file}#shop.Order")
    assert "do not contain their schema" in run("schema", "infer", "shop", fails=True)
    assert "not in the descriptor" in run("schema", "set", "orders", f"@{file}#shop.Other", fails=True)
    assert "cannot be read" in run("schema", "set", "orders", f"@{tmp_path}/none.desc#shop.Order", fails=True)
    assert "New columns: id, count" in run("schema", "set", "orders", f"@{file}#shop.Order")
    assert json.loads(run("schema", "show", "orders", "--json"))["format"] == "protobuf"


def test_copies_of_bad_records_that_are_not_appended_are_an_error(run, monkeypatch) -> None:
    run("schema", "set", "orders", "price DOUBLE")
    run("produce", "orders", lines='{"price": "x"}\n' * 3)
    monkeypatch.setattr(bad_records, "_AT_ONCE", 1)
    monkeypatch.setattr(TableFuture, "exception", DiskFullError("no space left"))
    assert "no space left" in run("topic", "bad-records", "orders", "--to", "dead", fails=True)


def test_bad_records_are_listed_and_copied(run) -> None:
    run("schema", "set", "orders", "price DOUBLE")
    assert "Every record of orders can be decoded" in run("topic", "bad-records", "orders")
    run("schema", "set", "orders", "--key", "n BIGINT")
    run("produce", "orders", lines='{"price": 1}\n{"price": "x"}\n')
    run("produce", "orders", "--key-separator", ";", lines='{"n": 1};{"price": 1}\n7;[]\n')
    found = [json.loads(line) for line in run("topic", "bad-records", "orders", "--json").splitlines()]
    assert [(row["offset"], row["part"], row["reason"]) for row in found] == [
        (1, "value", "price: expected DOUBLE, got a string"),
        (3, "key", "not a JSON object, but a number"),
        (3, "value", "not a JSON object, but an array"),
    ]
    run("produce", "orders", lines='{"price": true}\n{"price": "y"}\n')
    shown = run("topic", "bad-records", "orders", "--limit", "1")
    assert "These are 1 of 4 records: --limit 0 shows all." in shown
    counts = [line.strip("│ ").split("│") for line in shown.partition("shows all.")[2].splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in counts] == [
        ["value", "price: expected DOUBLE, got a string", "2"],
        ["key", "not a JSON object, but a number", "1"],
        ["value", "not a JSON object, but an array", "1"],
        ["value", "price: expected DOUBLE, got a boolean", "1"],
    ]
    assert run("topic", "bad-records", "orders", "--to", "dead") == "Copied 4 records to dead.\n"
    letters = run("consume", "dead", "--from", "earliest", "--json")
    assert "__spark_log.errors.exception.message" in letters
    assert "key: not a JSON object, but a number; value: not a JSON object" in letters
