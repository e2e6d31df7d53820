"""Typed columns of an Iceberg table in Spark: types, changes of the schema, and filters, which skip files."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from spark_log.log.log import Records
from spark_log.log.records import segment_write
from spark_log.log.records.schema import normalise
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.publication import delta_tables, publish
from tests.support.iceberg import CONFIGS, assert_table_is_the_log, metadata_path, ordered, rows_of
from tests.support.records import NOON_MS
from tests.support.topics import append, make

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.spark41]

SCHEMA = (
    "n BIGINT, flag BOOLEAN, at TIMESTAMP, day DATE, price DECIMAL(20, 4), small DECIMAL(5, 2), name STRING, x DOUBLE,"
    " tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, place STRUCT<city: STRING, spots: ARRAY<STRUCT<lat: DOUBLE>>>"
)
WIDER = SCHEMA.replace("lat: DOUBLE", "lat: DOUBLE, lon: DOUBLE").replace("city: STRING", "city: STRING, zip: STRING")
WIDER += ", more STRUCT<day: DATE>"
RESET = WIDER.replace("n BIGINT", "n STRING")
FULL = {
    "n": -5, "flag": True, "at": "1969-12-31T23:59:59.999999Z", "day": "1969-12-31", "price": -12345678.1234,
    "small": -999.99, "name": "\U0001f600" * 20 + "\uffff", "x": -0.0, "tags": ["a", None, ""],
    "counts": {"a": 1, "b": None}, "place": {"city": "c", "spots": [{"lat": 1.5}, None, {}]},
}  # fmt: skip
EMPTY = {"n": 2**63 - 1, "tags": [], "counts": {}, "place": {"spots": []}}


def by_pyiceberg(cluster, topic):
    rows = ordered(StaticTable.from_metadata(str(metadata_path(cluster, topic))).scan().to_arrow().to_pylist())
    return [{**row, "headers": row["headers"] or None} for row in rows]  # pyiceberg shows no list as an empty one


def test_files_of_all_versions_of_a_schema_are_read(spark41, cluster, log, monkeypatch):
    """A file without typed columns and one of an older schema have nulls until the task `columns` has been there."""
    topic = make(cluster, "t", 1, **CONFIGS)
    [location] = delta_tables(cluster, topic).values()
    documents = [json.dumps(each) for each in (FULL, EMPTY)] + ["{bad", None]

    def fill():
        with monkeypatch.context() as patch:
            patch.setattr(segment_write, "with_ids", lambda schema, ids: schema)  # as before there were Iceberg tables
            append(log, topic, *documents)
        append(log, topic, *documents)

    fill()
    rows = assert_table_is_the_log(spark41, cluster, log, topic)
    for schema in (SCHEMA, WIDER, RESET):
        topic = alter_configs(cluster, "t", {"value.format": "json", "value.schema": schema}, reset=True)
        fill()
        publish(cluster, topic)
        before, rows = rows, spark41.rows(location)
        assert rows == by_pyiceberg(cluster, topic)
        assert [row["value"] for row in rows] == [row["value"] for row in rows_of(log, topic)]
        assert all(row["record"] is None for row in rows[:8])
        assert rows[-8:] == rows_of(log, topic)[-8:], "the newest files have all columns"
        assert [row["offset"] for row in rows[: len(before)]] == [row["offset"] for row in before]
    list(run_tasks(cluster, ["columns"]))
    rows = assert_table_is_the_log(spark41, cluster, log, topic)
    assert [(row["record"]["n"], row["record"]["n__v2"]) for row in rows[::4]] == [(-5, "-5")] * 8


def check_filters(spark41, location, filters):
    """`filters` map a condition to the number of files that Spark reads for it. The rows are those for which the
    condition is true in a query that reads all files.
    """
    asked = ", ".join(f"{condition} AS c{number}" for number, condition in enumerate(filters))
    every = ordered(spark41.sql(f"SELECT partition, base_offset, offset_delta, {asked} FROM {spark41.table(location)}"))
    for number, condition in enumerate(filters):
        rows, files = spark41.scan(location, condition)
        expected = [(row["partition"], row["offset"]) for row in every if row[f"c{number}"]]
        assert [(row["partition"], row["offset"]) for row in rows] == expected, condition
        assert files == filters[condition], condition


LONG = "v" * 40
PLACE_FILTERS = {
    "partition = 1": 2,
    "partition = 0 AND base_offset > 0": 1,
    "base_offset + offset_delta > 1": 4,
    "base_offset IN (0, 3)": 3,
    "partition IS NULL": 0,
}
TYPED_FILTERS = {
    "record.n = -5": 2,
    "record.n > 7": 2,
    "record.n < -5": 2,
    "record.n IS NULL": 3,
    "record IS NULL": 4,
    "record_error IS NOT NULL": 2,
    "record.at < TIMESTAMP '1970-01-01'": 2,
    "record.at = TIMESTAMP '1969-12-31 23:59:59.999999'": 2,
    "record.at = TIMESTAMP '2026-01-01 00:00:00.0001'": 2,
    "record.day = DATE '1969-12-31'": 2,
    "record.day = DATE '9999-12-31'": 2,
    "record.price < 0": 2,
    "record.price = -12345678.1234": 2,
    "record.price > 999999999999.9999": 2,
    "record.small IN (-999.99, 300)": 3,
    "record.small BETWEEN -999.99 AND -999.99": 2,
    f"record.name = '{LONG}'": 3,
    f"record.name > '{LONG}'": 3,
    "record.name LIKE 'vvvv%'": 3,
    "record.name = ''": 3,
    "record.name IS NOT NULL": 4,
    "record.x <= 0": 2,
    "record.x > 1e299": 2,
    "record.place.city = 'z'": 2,
    "array_contains(record.tags, 'a')": 4,
    "record.counts['a'] = 1": 4,
    "record.flag": 4,
    "offset_delta = 2": 2,
    "timestamp < TIMESTAMP '2000-01-01'": 1,
    "key IS NULL AND value IS NULL": 4,
}
"""Iceberg takes 0.0 and -0.0 for different numbers, also in its own tables: there is no filter for them."""


def test_filters_skip_files_and_lose_no_record(spark41, cluster, log):
    """The files are: one without typed columns, one of an older schema, and two of the present one."""
    topic = make(cluster, "t", 2, **CONFIGS)
    append(log, topic, json.dumps(FULL))
    schema = SCHEMA.replace(", name STRING", "")
    topic = alter_configs(cluster, "t", {"value.format": "json", "value.schema": schema})
    append(log, topic, json.dumps({"n": 7, "x": 0.5, "price": 7}), json.dumps({"n": None}), "{bad", partition=1)
    topic = alter_configs(cluster, "t", {"value.schema": SCHEMA})
    append(log, topic, json.dumps(FULL), json.dumps({**FULL, "name": LONG, "x": -7.5, "n": -300}))
    values = {"at": "2026-01-01T00:00:00.0001Z", "day": "9999-12-31", "price": 1e12, "small": 300, "x": 1e300}
    append(log, topic, json.dumps({**values, "n": 300, "name": "", "place": {"city": "z"}}), None, partition=1)
    publish(cluster, topic)
    [location] = delta_tables(cluster, topic).values()
    check_filters(spark41, location, {**PLACE_FILTERS, **TYPED_FILTERS})


def test_values_that_are_not_a_number_are_found(spark41, cluster, log):
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "double"]}]}
    topic = make(cluster, "t", 1, **CONFIGS, value_format="avro", value_schema=json.dumps(schema))
    for numbers in ([1.0, float("nan")], [-1.0, None], [float("nan")], [float("inf"), float("-inf")]):
        values = []
        for x in numbers:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, schema, {"x": x})
            values.append(buffer.getvalue())
        log.append(topic, [Records(0, normalise(pa.table({"value": values}), timestamp_ms=NOON_MS))])
    assert_table_is_the_log(spark41, cluster, log, topic)
    [location] = delta_tables(cluster, topic).values()
    conditions = ("record.x > 1", "record.x < 0", "isnan(record.x)", "NOT isnan(record.x)", "record.x IS NULL")
    check_filters(spark41, location, dict.fromkeys(conditions, 4))
