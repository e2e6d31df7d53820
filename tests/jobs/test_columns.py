"""How the jobs convert rows to records, and records to rows."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession

from spark_log.errors import InvalidOptionError
from spark_log.spark.jobs.failures import one_line
from spark_log.spark.jobs.options.job_arguments import Columns, ConsumeArguments, Files
from spark_log.spark.jobs.options.run_options import Batch, Shared
from spark_log.spark.jobs.queries.consume_query import shaped
from spark_log.spark.jobs.queries.measurement import Measured
from spark_log.spark.jobs.queries.produce_query import shape
from spark_log.spark.jobs.queries.stream_query import as_records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    text = "id INT, name STRING, at TIMESTAMP, raw BINARY, place STRUCT<x: INT, y: STRING>"
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    data = [(1, "a", noon, b"\xff", (7, "z")), (2, None, None, None, None)]
    return spark.createDataFrame(data, text)


def columns(
    key: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Columns:
    return Columns(key, value, timestamp, partition, headers)


def test_by_default_all_columns_are_the_value(rows: DataFrame) -> None:
    records = shape(rows.select("id", "name", "place"), columns())
    assert records.columns == ["value"]
    first, second = (json.loads(row["value"]) for row in records.collect())
    assert first == {"id": 1, "name": "a", "place": {"x": 7, "y": "z"}}
    assert second == {"id": 2}, "nulls are left out"


def test_keys_values_and_headers_of_any_type_become_bytes_or_text(rows: DataFrame) -> None:
    chosen = columns("id", "raw", "at", "id - 1", (("name", "name"), ("place", "place"), ("n", "1 + 1")))
    records = shape(rows, chosen)
    assert dict(records.dtypes) == {
        "value": "binary",
        "key": "string",
        "timestamp": "timestamp",
        "partition": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }
    first, second = records.collect()
    assert (first["key"], first["value"], first["partition"]) == ("1", b"\xff", 0)
    assert [(h["key"], bytes(h["value"])) for h in first["headers"]] == [
        ("name", b"a"),
        ("place", b'{"x":7,"y":"z"}'),
        ("n", b"2"),
    ]
    assert [h["value"] for h in second["headers"]][:2] == [None, None]
    assert second["timestamp"] is None
    assert shape(rows, columns(key="name")).collect()[1]["key"] is None, "null keys stay null"


def test_rows_that_differ_in_microseconds_have_different_keys_and_values(spark: SparkSession) -> None:
    times = spark.range(1, 3).selectExpr("'a' AS name", "timestamp_micros(id) AS at")
    produced = shape(times, columns(key="struct(name, at)"))
    aggregated = as_records(times, None, ["name", "at"])
    expected = [f'{{"name":"a","at":"1970-01-01T00:00:00.00000{n}Z"}}' for n in (1, 2)]
    for records in (produced, aggregated):
        assert sorted(tuple(row) for row in records.select("key", "value").collect()) == list(
            zip(expected, expected, strict=True)
        )


def test_number_as_timestamp_is_refused(rows: DataFrame) -> None:
    with pytest.raises(InvalidOptionError, match=r"timestamp_millis\(id\)"):
        shape(rows, columns(timestamp="id"))
    as_text = shape(rows, columns(timestamp="'2013-01-01T12:00:00Z'"))
    assert as_text.selectExpr("unix_millis(timestamp)").first()[0] == 1_357_041_600_000  # type: ignore[index]


def test_error_for_an_unknown_column_is_one_line(rows: DataFrame) -> None:
    with pytest.raises(Exception, match="nothere") as error:
        shape(rows, columns(key="nothere"))
    assert "nothere" in one_line(error.value)
    assert "\n" not in one_line(error.value)


def test_values_become_columns_and_malformed_values_are_kept_and_counted(spark: SparkSession) -> None:
    schema = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
    )
    now = datetime(2013, 1, 1, tzinfo=UTC)
    values = [b'{"a": 1, "key": "k"}', b"not json", None, b'{"a": "text"}']
    records = spark.createDataFrame([(b"k", value, "t", 0, n, now, 0) for n, value in enumerate(values)], schema)
    arguments = ConsumeArguments(
        Shared("c", Batch(), None, False), {}, "a INT, key STRING", Files("parquet", "p", "append")
    )
    observation = Observation()
    frame = shaped(records, arguments, observation)
    assert frame.columns == ["_key", "_topic", "_partition", "_offset", "_timestamp", "a", "key", "_malformed"]
    found = [(row["_key"], row["a"], row["key"], row["_malformed"]) for row in frame.collect()]
    assert found == [
        ("k", 1, "k", None),
        ("k", None, None, "not json"),
        ("k", None, None, None),
        ("k", None, None, '{"a": "text"}'),
    ]
    expected_bytes = sum(len(value or b"") + 1 for value in values)
    assert Measured.of(observation.get) == Measured(4, expected_bytes, 2)
