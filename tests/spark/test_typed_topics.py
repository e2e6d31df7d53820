"""Typed topics in Spark: read_topic(record=True), format("spark_log") with column record, and the Delta table."""

import json

import pytest
from pyspark.sql import functions as sf

from spark_log import read_topic
from spark_log.log.columns.types import to_ddl
from spark_log.log.segments import typed_columns
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.publication import delta_tables
from tests.spark.queries import in_parquet
from tests.support.topics import append, fails, make, read, read_stream

SCHEMA = (
    "item STRING, price DOUBLE, n INT, at TIMESTAMP, day DATE, ok BOOLEAN, total DECIMAL(10, 2),"
    " lines ARRAY<STRUCT<sku: STRING, n: INT>>, tags MAP<STRING, STRING>"
)
WIDER = SCHEMA.replace("sku: STRING", "sku: STRING, note: STRING") + ", note STRING"


def document(number, **more):
    return json.dumps(
        {
            "item": f"i{number}", "price": number / 2, "n": number, "at": f"2026-11-22T10:00:{number:02}Z",
            "day": "2026-11-22", "ok": number % 2 == 0, "total": f"{number}.25",
            "lines": [{"sku": "a", "n": number, "note": "x"}], "tags": {"k": "v"}, **more,
        }
    )  # fmt: skip


@pytest.fixture
def orders(cluster):
    """A topic with an old file (without the present columns), a file with them, and a tail with a bad value and a bad
    key.
    """
    log = ClientLog(cluster)
    topic = make(cluster, "orders", value_format="json", value_schema=SCHEMA, inline_max_bytes="0")
    append(log, topic, document(1), document(2), key=b'{"id": 1}')
    topic = alter_configs(cluster, "orders", {"value.schema": WIDER, "key.format": "json", "key.schema": "id BIGINT"})
    append(log, topic, document(3, note="three"))
    topic = alter_configs(cluster, "orders", {"inline.max.bytes": None})
    append(log, topic, document(4), "{bad", key=b"k")
    yield topic
    log.close()  # which seals the tail


def from_json(frame, schema):
    """The records that from_json makes of the values."""
    return frame.select("offset", sf.from_json(sf.col("value").cast("string"), schema).alias("record"))


def rows(frame):
    """The records as JSON, by offset: Spark does not compare maps."""
    return dict(frame.select("offset", sf.to_json("record")).collect())


def test_the_columns_are_those_that_from_json_makes_of_the_values(spark, cluster, orders):
    plain = read_topic(spark, cluster, "orders")
    assert "record" not in plain.columns
    wanted = from_json(plain.where("value != '{bad'"), to_ddl(orders.columns.value.fields))
    for frame in (
        read_topic(spark, cluster, "orders", record=True),
        read(spark, cluster, subscribe="orders", columns="offset,record,key_record_error,record_error,key_record"),
    ):
        keys = dict(frame.select("offset", "key_record.id").collect())
        assert keys == {0: 1, 1: 1, 2: None, 3: None, 4: None}
        bad_keys = frame.where("key_record_error IS NOT NULL").select("offset").collect()
        assert sorted(bad_keys) == [(3,), (4,)]
        good = frame.where("record_error IS NULL")
        types = {field.name: field.dataType for field in frame.schema["record"].dataType}
        assert types["n"].simpleString() == "bigint"
        assert rows(good) == rows(wanted)
        [bad] = frame.where("record_error IS NOT NULL").select("offset", "record", "record_error").collect()
        assert (bad.offset, bad.record) == (4, None)
        assert bad.record_error.startswith("not valid JSON")


def test_python_workers_decode_the_tail(spark, cluster, orders, monkeypatch):
    def decoded(*arguments):
        raise AssertionError("decoded in the driver, which holds the whole tail")

    monkeypatch.setattr(typed_columns, "decoded", decoded)
    found = read_topic(spark, cluster, "orders", record=True).select("offset", "record.item").collect()
    assert sorted(found, key=lambda row: row.offset)[2:] == [(2, "i3"), (3, "i4"), (4, None)]


@pytest.mark.delta_jars
def test_the_delta_table_has_the_columns_after_the_backfill(spark, cluster, orders):
    list(run_tasks(cluster, ["seal", "columns"], now=True))
    [location] = delta_tables(cluster, orders).values()
    table = spark.read.format("delta").load(location)
    found = table.select((sf.col("base_offset") + sf.col("offset_delta")).alias("offset"), "record")
    assert rows(found) == rows(read_topic(spark, cluster, "orders", record=True))
    assert table.where("record.note = 'three'").select("record.item", "record.lines.note").collect() == [("i3", ["x"])]


def test_a_stream_of_records_continues_through_a_change_of_the_schema(spark, cluster, orders, tmp_path):
    frame = read_stream(spark, cluster, subscribe="orders", startingOffsets="earliest", columns="offset,record").select(
        "offset", "record.item", "record.n"
    )
    in_parquet(frame, tmp_path)
    topic = alter_configs(cluster, "orders", {"value.schema": WIDER + ", extra STRING"})
    log = ClientLog(cluster)
    append(log, topic, document(5, extra="e"))
    log.close()
    rows = in_parquet(frame, tmp_path)  # the same DataFrame, with the type that the topic had before
    found = {(row.offset, row.item, row.n) for row in rows.collect()}
    assert found == {(0, "i1", 1), (1, "i2", 2), (2, "i3", 3), (3, "i4", 4), (4, None, None), (5, "i5", 5)}


def test_option_columns_takes_fields_of_record(spark, cluster, orders):
    frame = read(spark, cluster, subscribe="orders", columns="record.lines.sku,offset,record.n,key_record.id")
    of_record = "struct<n:bigint,lines:array<struct<sku:string>>>"
    assert frame.schema.simpleString() == f"struct<record:{of_record},offset:bigint,key_record:struct<id:bigint>>"
    whole = read_topic(spark, cluster, "orders", record=True).select("offset", "record.n", "record.lines.sku")
    assert sorted(frame.select("offset", "record.n", "record.lines.sku").collect()) == sorted(whole.collect())
    with fails("no field 'record.prize'"):
        read(spark, cluster, subscribe="orders", columns="record.prize")


def test_column_record_needs_one_typed_topic(spark, cluster, orders):
    make(cluster, "plain")
    with fails("'plain' has no typed columns"):
        read(spark, cluster, subscribe="plain", columns="record")
    alter_configs(cluster, "orders", {"key.format": "bytes"})
    with fails("no column key_record: set key.format"):
        read(spark, cluster, subscribe="orders", columns="key_record.id")
    with fails("has to name one topic"):
        read(spark, cluster, subscribe="orders,plain", columns="record")
    with fails("'plain' has no typed columns"):
        read_topic(spark, cluster, "plain", record=True)


@pytest.mark.slow
@pytest.mark.delta_jars
def test_the_delta_table_is_readable_before_and_after_a_reset(spark, cluster, orders):
    list(run_tasks(cluster, ["seal"], now=True))
    [location] = delta_tables(cluster, orders).values()

    def prices(*columns):
        found = spark.read.format("delta").load(location).where("record.item LIKE 'i%'").select(*columns)
        return sorted(map(tuple, found.collect()))

    before = prices("record.item", "record.price")
    assert before == [("i1", 0.5), ("i2", 1.0), ("i3", 1.5), ("i4", 2.0)]
    topic = alter_configs(
        cluster, "orders", {"value.schema": WIDER.replace("price DOUBLE", "price STRING")}, reset=True
    )
    assert prices("record.item", "record.price") == before
    log = ClientLog(cluster)
    append(log, topic, document(5, price="free"))
    log.close()
    assert prices("record.item", "record.price") == [*before, ("i5", None)]
    list(run_tasks(cluster, ["columns"]))
    assert prices("record.item", "record.price", "record.price__v2") == [
        ("i1", 0.5, "0.5"), ("i2", 1.0, "1.0"), ("i3", 1.5, "1.5"), ("i4", 2.0, "2.0"), ("i5", None, "free"),
    ]  # fmt: skip
