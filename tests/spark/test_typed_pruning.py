"""Spark's filters on fields of record skip files and row groups, and lose no record: through the Delta table, through
format("spark_log"), and through read_topic.
"""

import json

import pytest
from pyspark.sql import functions as sf

from spark_log import read_topic
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.publication import delta_tables
from tests.spark.queries import configured
from tests.support.topics import append, make, read

SCHEMA = "item STRING, price DOUBLE, n BIGINT, at TIMESTAMP, day DATE, total DECIMAL(20, 2), place STRUCT<city: STRING>"
LONG = "z" * 40


def document(number, **more):
    day = f"2026-11-{number:02}"
    fields = {"item": f"i{number}", "price": float(number), "n": number, "at": f"{day}T10:00:00.123456Z", "day": day}
    return json.dumps({**fields, "total": f"{number}.25", "place": {"city": f"c{number}"}, **more})


@pytest.fixture
def orders(cluster):
    """Partition 0: a file that was never decoded. 1: a file of an older version. 2 and 3: files with all columns, the
    last one with nulls, a bad value, -0.0 and long strings. 4: a tail.
    """
    log = ClientLog(cluster)
    topic = make(cluster, "orders", 5, inline_max_bytes="0")
    append(log, topic, document(1), document(9), partition=0)
    topic = alter_configs(cluster, "orders", {"value.format": "json", "value.schema": SCHEMA})
    append(log, topic, document(2), document(8), partition=1)
    topic = alter_configs(
        cluster, "orders", {"value.schema": SCHEMA + ", note STRING", "key.format": "json", "key.schema": "id BIGINT"}
    )
    append(log, topic, document(3), document(4), partition=2, key=b'{"id": 1}')
    append(log, topic, document(7, item=LONG), document(6, price=-0.0, item=None), "{bad", partition=3, key=b"?")
    topic = alter_configs(cluster, "orders", {"inline.max.bytes": None, "delta.max.lag.ms": "-1"})
    append(log, topic, document(5), partition=4)
    log.close()
    return topic


@pytest.fixture
def pushdown(spark):
    """Spark gives filters to Python data sources."""
    with configured(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        yield


FILTERS = {
    "record.price > 6.5": (3, 1),
    "record.n IN (3, 4)": (3, 1),
    "record.item IS NULL": (2, 1),
    f"record.item = '{LONG}'": (2, 1),
    "record.item LIKE 'i3%'": (3, 1),
    "record.at > TIMESTAMP '2026-11-07 10:00:00.123455Z'": (3, 1),
    "record.day = DATE '2026-11-04' AND record.total < 4.5": (3, 1),
    "record.place.city = 'c4'": (3, 1),
    "record.price <= 0.0": (2, 1),
    "record_error IS NOT NULL": (2, 1),
    "record.n > 100": (1, 0),
    "key_record.id = 1": (3, 1),
    "key_record_error IS NOT NULL": (2, 1),
}
"""Filters, and how many of the four files of the Delta table, and of the last two of them, are read for it."""


def files_read(frame):
    """Number of files that the scan of a collected DataFrame has read."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return sum(leaves.apply(number).metrics().apply("numFiles").value() for number in range(leaves.size()))


@pytest.mark.slow
@pytest.mark.delta_jars
def test_a_filter_reads_fewer_files_and_finds_the_same_records(spark, cluster, orders, pushdown):
    [location] = delta_tables(cluster, orders).values()
    columns = ("partition", "value", "record", "record_error", "key_record", "key_record_error")
    frames = {
        "delta": spark.read.format("delta").load(location).select(*columns),
        "spark_log": read(spark, cluster, subscribe="orders", columns=",".join(columns)),
        "read_topic": read_topic(spark, cluster, "orders", record=True).select(*columns),
    }
    rows = {name: sorted(frame.collect(), key=str) for name, frame in frames.items()}
    assert rows["read_topic"] == rows["spark_log"]
    whole = {name: spark.createDataFrame(rows[name], frames[name].schema) for name in ("delta", "spark_log")}
    flags = [sf.expr(condition) for condition in FILTERS]
    marked = {name: all_.select("*", *flags).collect() for name, all_ in whole.items()}
    marked["read_topic"] = marked["spark_log"]
    for number, (condition, (of_delta, with_all_columns)) in enumerate(FILTERS.items(), len(columns)):
        for name, frame in frames.items():
            found = frame.where(condition)
            expected = [row[: len(columns)] for row in marked[name] if row[number]]
            assert sorted(map(tuple, found.collect()), key=repr) == sorted(expected, key=repr), (name, condition)
            if name == "delta":
                assert files_read(found) == of_delta, condition
            if name == "spark_log":  # a task for each partition with something to read: 0, 1 and 4 have no bounds
                assert found.rdd.getNumPartitions() == 3 + with_all_columns, condition
