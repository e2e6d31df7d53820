"""`streams.typed`: the rows of a DataFrame are the records of the topic."""

import datetime as dt
import json
from decimal import Context, Decimal
from itertools import count

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from pyspark.sql import functions as sf

from spark_log.errors import InvalidConfigurationError, InvalidOptionError
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.types import to_ddl
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.streams import typed
from spark_log.tables.publication import delta_tables
from tests.spark.queries import configured
from tests.support.topics import fails, make
from tests.unit.log.columns.strategies import SCHEMAS

ORDERS_TYPE = "struct<item: string, price: double>"
ORDERS = "item STRING, price DOUBLE, n BIGINT, at TIMESTAMP"
EXACT = Context(prec=38)
"""Python's own context rounds to 28 digits."""
_numbers = count()


def topic_of(cluster, name="orders", **configs):
    given_ = {"value_format": "json", "value_schema": ORDERS, "inline_max_bytes": "0", "retention_ms": "-1"}
    return make(cluster, name, **{**given_, **configs})


def write(frame, cluster, topic="orders"):
    options = {"cluster": str(cluster.store.address), "topic": topic}
    frame.write.format("spark_log").options(**options).mode("append").save()


def stored(cluster, name="orders"):
    """The columns of keys and values of every record in the topic's files, and the decoded values."""
    log = ClientLog(cluster)
    topic = log.find_topic(name)
    log.close()
    [location] = delta_tables(cluster, topic).values()
    rows = DeltaTable(location).to_pyarrow_table(columns=["key", "value", *topic.columns.fields.names])
    values = rows.column("value").combine_chunks().cast(pa.binary())
    return rows.to_pylist(), decoder(topic.columns.value).decode(values).record.to_pylist()


def check(cluster, name="orders"):
    """Each stored record is the decoded value. Returns them."""
    rows, decoded = stored(cluster, name)
    assert [repr(row["record"]) for row in rows] == [repr(record) for record in decoded]
    assert {row["record_error"] for row in rows} <= {None}
    return decoded


def values_of(kind):
    if pa.types.is_struct(kind):
        some = hs.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif pa.types.is_list(kind):
        some = hs.lists(values_of(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        some = hs.dictionaries(hs.text(max_size=3), values_of(kind.item_type), max_size=3).map(
            lambda found: list(found.items())
        )
    elif pa.types.is_decimal(kind):
        limit = 10**kind.precision - 1
        some = hs.integers(-limit, limit).map(lambda digits: Decimal(digits).scaleb(-kind.scale, EXACT))
    else:
        some = {
            pa.int64(): hs.integers(-(2**63), 2**63 - 1),
            pa.float64(): hs.floats(allow_nan=False, allow_infinity=False),
            pa.timestamp("us", "UTC"): hs.datetimes(timezones=hs.just(dt.UTC)),
            pa.date32(): hs.dates(),
            pa.bool_(): hs.booleans(),
            pa.binary(): hs.binary(max_size=4),
            pa.string(): hs.text(max_size=4),
        }[kind]
    return hs.none() | some


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=hs.data())
def test_the_stored_record_is_the_decoded_value_for_any_schema(spark, cluster, data):
    fields = data.draw(SCHEMAS)
    rows = data.draw(hs.lists(values_of(fields), min_size=1, max_size=60))
    name = f"any-{next(_numbers)}"
    topic_of(cluster, name, value_schema=to_ddl(fields))
    frame = spark.createDataFrame(pa.table({"struct": pa.array(rows, fields)}))
    write(typed(frame, cluster, name, value="struct"), cluster, name)
    assert sorted(map(repr, check(cluster, name))) == sorted(map(repr, pa.array(rows, fields).to_pylist()))


@pytest.mark.parametrize("policy", ["CORRECTED", "LEGACY"])
def test_nulls_other_zones_and_microseconds_are_kept(spark, cluster, policy):
    topic_of(cluster, value_columns="item,at")
    with (
        configured(spark, "spark.sql.session.timeZone", "Europe/Berlin"),
        configured(spark, "spark.sql.legacy.timeParserPolicy", policy),
    ):
        frame = spark.sql(
            "SELECT if(id = 0, null, struct(at, item, price)) o FROM VALUES (0, null, '', float(0)),"
            " (1, timestamp'1871-03-02 10:00:00.123456', 'a', float(0.1)), (2, timestamp_micros(1), null, float(1e-40))"
            " AS t(id, at, item, price)"
        )
        write(typed(frame, cluster, "orders", value="o"), cluster)
    found = check(cluster)
    assert [sorted(row or ()) for row in found].count([]) == 1
    assert dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC) in [row and row["at"] for row in found]
    prices = [json.loads(row["value"])["price"] for row in stored(cluster)[0] if row["value"]]
    assert sorted(prices) == [pytest.approx(1e-40), 0.10000000149011612]


def test_what_the_topic_cannot_hold_is_refused_by_name(spark, cluster):
    topic_of(cluster)
    make(cluster, "plain")
    topic_of(cluster, "keyed", key_format="json", key_schema="n INT")
    frame = spark.sql("SELECT 'a' AS item, 1.5D AS price")
    with pytest.raises(InvalidOptionError, match=r"key\.item: the schema has no such field"):
        typed(frame, cluster, "keyed", key=["item"])
    with pytest.raises(InvalidConfigurationError, match=r"no typed columns of its keys: set key\.format"):
        typed(frame, cluster, "orders", key=["item"])
    for columns, message in {
        "item, price, 1 AS more": r"value\.more: the schema has no such field",
        "item, '1' AS price": r"value\.price: string does not fit double",
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            typed(frame.selectExpr(*columns.split(", ")), cluster, "orders")
    with pytest.raises(InvalidOptionError, match=r"value\.N: its name is that of n without case"):
        typed(frame.selectExpr("named_struct('n', 1, 'N', 2) AS o"), cluster, "orders", value="o")
    with pytest.raises(InvalidConfigurationError, match="'plain' has no typed columns"):
        typed(frame, cluster, "plain")


def test_a_number_that_json_cannot_express_makes_a_bad_record(spark, cluster):
    topic_of(cluster)
    topic_of(cluster, "strict", value_bad_records="reject")
    frame = spark.sql("SELECT double('NaN') AS price")
    write(typed(frame, cluster, "orders"), cluster)
    [[row], _] = stored(cluster)
    assert (row["record"], row["record_error"]) == (None, "price: expected DOUBLE, got a string")
    with fails("value: in row 0: price: expected DOUBLE, got a string"):
        write(typed(frame, cluster, "strict"), cluster, "strict")
    topic_of(cluster, "keys", key_format="json", key_schema="price DOUBLE", key_bad_records="reject")
    with fails("key: in row 0: price: expected DOUBLE, got a string"):
        write(typed(frame, cluster, "keys", value=sf.lit(None).cast(ORDERS_TYPE), key=["price"]), cluster, "keys")


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "f", "type": ["null", "float"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": [{"type": "long", "logicalType": "timestamp-micros"}, "null"]},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "code", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "lines", "type": {"type": "array", "items": ["null", {
            "type": "record", "name": "L", "fields": [{"name": "sku", "type": ["null", "string"]}]}]}},
    ],
}  # fmt: skip


@pytest.mark.delta_jars
@pytest.mark.delta
def test_avro_values_decode_to_the_rows(spark, cluster):
    of_key = json.dumps({**AVRO, "fields": [field for field in AVRO["fields"] if field["name"] in ("n", "kind")]})
    topic_of(cluster, value_format="avro", value_schema=json.dumps(AVRO), key_format="avro", key_schema=of_key)
    frame = spark.range(100).selectExpr(
        "int(id) n", "if(id % 3 = 0, null, float(id / 7)) f", "cast(id / 8 as decimal(5, 2)) total",
        "if(id = 4, null, timestamp_micros(id * 1234567)) at", "if(id % 2 = 0, 'A', 'B') kind", "binary('xy') code",
        "array(null, named_struct('sku', concat('s', id))) lines",
    )  # fmt: skip
    write(typed(frame, cluster, "orders", key=["kind", "n"]), cluster)
    assert len(check(cluster)) == 100
    for row in stored(cluster)[0]:
        assert row["key_record"] == {name: row["record"][name] for name in ("n", "kind")}
    with_map = {**AVRO, "fields": [*AVRO["fields"], {"name": "m", "type": {"type": "map", "values": "long"}}]}
    topic_of(cluster, "maps", value_format="avro", value_schema=json.dumps(with_map))
    write(typed(frame.withColumn("m", sf.expr("map('b', 1L, 'a', 2L)")), cluster, "maps"), cluster, "maps")
    assert [sorted(row["m"]) for row in check(cluster, "maps")] == [[("a", 2), ("b", 1)]] * 100
    with pytest.raises(InvalidOptionError, match=r"value\.n: bigint does not fit int"):
        typed(frame.withColumn("n", sf.lit(1).cast("long")), cluster, "orders")


def test_a_stream_writes_typed_records(spark, cluster, tmp_path):
    topic_of(cluster, key_format="json", key_schema="N INT, extra STRING")
    spark.range(50).selectExpr("concat('i', id) item", "id n").write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("item STRING, n BIGINT").parquet(str(tmp_path / "in"))
    records = typed(source, cluster, "orders", key=["n"])
    options = {"cluster": str(cluster.store.address), "topic": "orders", "checkpointLocation": str(tmp_path / "c")}
    sink = records.writeStream.format("spark_log").options(**options)
    sink.trigger(availableNow=True).start().awaitTermination()
    assert sorted(row["n"] for row in check(cluster)) == list(range(50))
    assert {row["key_record"]["N"] == row["record"]["n"] for row in stored(cluster)[0]} == {True}
    text = typed(spark.sql("SELECT 'a' AS item, '{\"N\": 7}' AS k"), cluster, "orders", value=["item"], key="k")
    assert text.select("key").first() == ('{"N": 7}',)
