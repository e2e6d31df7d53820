"""Values to columns and back, and the handling of invalid values, in batches and in streams."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.errors import InvalidOptionError
from spark_log.log.log import Records
from spark_log.spark.streams.bad_records import dead_letters, valid
from spark_log.spark.streams.formats.codecs import Avro, Confluent, Json, Protobuf, decode, encode
from spark_log.spark.streams.outputs import TopicOutput, write_stream
from tests.spark.queries import configured
from tests.support.mirroring import everything
from tests.support.records import table
from tests.support.schemas import FLIGHT_DESCRIPTOR_SET, flight_bytes
from tests.support.spark import assert_same_rows
from tests.support.topics import make, read_stream

FLIGHT = "carrier STRING, delay INT"
AVRO_FLIGHT = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "namespace": "example",
        "fields": [{"name": "carrier", "type": ["null", "string"]}, {"name": "delay", "type": ["null", "int"]}],
    }
)
UNREADABLE = "not a record of Avro schema Flight: truncated, too long, or of another schema"


def avro(carrier, delay):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(AVRO_FLIGHT), {"carrier": carrier, "delay": delay})
    return out.getvalue()


def decoded(spark, codec, values):
    """The decoded value or the error of each value; all are decoded in one query."""
    frame = spark.createDataFrame([(n, value) for n, value in enumerate(values)], "n INT, value BINARY")
    rows = decode(frame, codec).orderBy("n").collect()
    assert [row.raw for row in rows] == values
    for row in rows:
        assert row.value is None or row.error is None
    return [row.error if row.error is not None else row.value for row in rows]


JSON_CASES = {
    b'{"carrier":"UA","delay":3}': ("UA", 3),
    b' {"delay" : -3 ,\n"more":{"x":[1]}} ': (None, -3),
    b'{"carrier":5}': ("5", None),
    b'{"carrier":{"x":1}}': ('{"x":1}', None),
    b"{}": (None, None),
    b'{"delay":null}': (None, None),
    '{"carrier":"é€\U0001f600"}'.encode(): ("é€\U0001f600", None),
    None: None,
    b"": "not one JSON object",
    b"  ": "not one JSON object",
    b"null": "not one JSON object",
    b"5": "not one JSON object",
    b'"UA"': "not one JSON object",
    b'[{"carrier":"UA"}]': "not one JSON object",
    b"[]": "not one JSON object",
    b'{"carrier":"UA"': "not one JSON object",
    b'{"carrier":"UA"} x': "not one JSON object",
    b'{"carrier":"UA"}{"carrier":"B6"}': "not one JSON object",
    b'{"carrier":"UA"},{"carrier":"B6"}': "not one JSON object",
    b'{"carrier":"UA"},"value":{"carrier":"B6"}': "not one JSON object",
    b'{"carrier":"UA"}],"x":[{}': "not one JSON object",
    b'{"carrier":"UA"}] x': "not one JSON object",
    b'{"carrier":"UA"}} x': "not one JSON object",
    b"{'carrier':'UA'}": "not one JSON object",
    b'{"carrier":"UA",}': "not one JSON object",
    b'{"delay":01}': "not one JSON object",
    b'{"delay":"3"}': "field delay: not of type int: 3",
    b'{"carrier":"UA","delay":3.5}': "field delay: not of type int: 3.5",
    b'{"delay":3000000000}': "field delay: not of type int: 3000000000",
    b'{"delay":[1]}': "field delay: not of type int: [1]",
    b'{"delay":"' + b"x" * 200 + b'"}': "field delay: not of type int: " + "x" * 100,
    b'{"carrier":"\xff\xfe"}': "not UTF-8",
    b"\xff": "not UTF-8",
    b"\x00\x00\x00\x00\x07abc": "not one JSON object",
}


def test_json(spark):
    found = dict(zip(JSON_CASES, decoded(spark, Json(FLIGHT), list(JSON_CASES)), strict=True))
    assert found == JSON_CASES


def test_json_without_a_required_field(spark):
    schema = (
        "id INT NOT NULL, at STRUCT<day: INT NOT NULL, hour: INT>, stops ARRAY<STRUCT<name: STRING NOT NULL>>,"
        " fares MAP<STRING, INT>"
    )
    cases = {
        b'{"id":1}': None,
        b'{"id":1,"at":{"day":2},"stops":[{"name":"x"},null],"fares":{"a":null}}': None,
        b'{"id":null}': "field id: null or missing, and NOT NULL",
        b"{}": "field id: null or missing, and NOT NULL",
        b'{"id":1,"at":{"hour":2}}': "field at.day: null or missing, and NOT NULL",
        b'{"id":1,"stops":[{"name":"x"},{}]}': "field stops[].name: null or missing, and NOT NULL",
        b'{"id":"1"}': "field id: not of type int: 1",
        b'{"id":1,"at":{"day":"x"}}': "a field is not of the schema's type",
    }
    frame = spark.createDataFrame([(value,) for value in cases], "value BINARY")
    assert {row.raw: row.error for row in decode(frame, Json(schema)).collect()} == cases


def test_json_keeps_the_microseconds_of_timestamps(spark):
    precise, local = "timestamp'2026-01-02 03:04:05.123456Z'", "timestamp_ntz'2026-01-02 03:04:05.123456'"
    columns = {
        "at": precise,
        "old": "timestamp'1871-03-02 10:00:00.000001'",  # in local mean time
        "local": local,
        "within": f"named_struct('at', {precise}, 'n', 1)",
        "items": f"array(null, named_struct('l', array({precise})))",
        "by_name": f"map('a', {local})",
    }
    one_of_them = [f"if(id = {number}, {columns[name]}, null) AS {name}" for number, name in enumerate(columns)]
    with configured(spark, "spark.sql.session.timeZone", "Europe/Berlin"):
        rows = spark.range(len(columns)).selectExpr("id", "timestamp_millis(id) AS millis", *one_of_them)
        back = decode(encode(rows, Json()), Json(rows.schema)).select("error", "value.*")
        assert_same_rows(back, [(None, *row) for row in rows.collect()])
        alike = spark.sql(f"SELECT named_struct('at', {precise}, 'AT', {precise}) AS alike")
        assert json_of(alike).count("04:04:05.123456+01:00") == 2
        given = spark.sql(f"SELECT {precise} AS at, {local} AS local")
        assert json_of(given, timestampformat="yyyy") == '{"at":"2026","local":"2026-01-02T03:04:05.123456"}'


def test_json_keeps_the_microseconds_of_timestamps_under_the_legacy_policy(spark):
    precise, local = "timestamp'2026-01-02 03:04:05.123456Z'", "timestamp_ntz'2026-01-02 03:04:05.123456'"
    with configured(spark, "spark.sql.legacy.timeParserPolicy", "legacy"):  # that of Spark 2
        assert json_of(spark.sql(f"SELECT {precise} AS at")) == '{"at":"2026-01-02T03:04:05.123456Z"}'
        assert json_of(spark.sql(f"SELECT {local} AS local")) == '{"local":"2026-01-02T03:04:05.123456"}'
        assert json_of(spark.sql("SELECT 1 AS n")) == '{"n":1}'


def test_json_has_milliseconds_as_to_json_writes_them(spark):
    """So the keys and values of existing queries stay the same."""
    seconds, local = "timestamp'2026-01-02 03:04:05.120Z'", "timestamp_ntz'2026-01-02 03:04:05'"
    row = spark.sql(f"SELECT {seconds} AS at, {local} AS local, array({seconds}, null) AS l, timestamp(null) AS none")
    assert json_of(row) == (
        '{"at":"2026-01-02T03:04:05.120Z","local":"2026-01-02T03:04:05.000","l":["2026-01-02T03:04:05.120Z",null]}'
    )


def json_of(frame, **options):
    [row] = encode(frame, Json(options=options)).collect()
    return row.value.decode()


AVRO_CASES = [
    (avro("UA", 3), ("UA", 3)),
    (avro(None, None), (None, None)),
    (None, None),
    (avro("UA", 3)[:-1], UNREADABLE),
    (avro("UA", 3)[:2], UNREADABLE),
    (avro("UA", 3) + b"\0", UNREADABLE),
    (avro("UA", 3) * 2, UNREADABLE),
    (b"", UNREADABLE),
    (b"\xff" * 11, UNREADABLE),
    (b'{"carrier":"UA","delay":3}', UNREADABLE),
]


@pytest.mark.delta_jars
def test_avro(spark):
    values, expected = map(list, zip(*AVRO_CASES, strict=True))
    assert decoded(spark, Avro(AVRO_FLIGHT), values) == expected


@pytest.mark.delta_jars
def test_avro_with_the_framing_of_confluent_serializers(spark):
    framed = [None if value is None else b"\0\0\0\0\x07" + value for value, _ in AVRO_CASES]
    expected = [result for _, result in AVRO_CASES]
    assert decoded(spark, Avro(AVRO_FLIGHT, Confluent()), framed) == expected
    assert decoded(spark, Avro(AVRO_FLIGHT, Confluent(7)), framed) == expected
    bad = [b"", b"\0\0\0\0", b"\x01\0\0\0\x07" + avro("UA", 3), avro("UA", 3)]
    assert decoded(spark, Avro(AVRO_FLIGHT, Confluent()), bad) == ["does not begin with Confluent's framing"] * 4
    other = [b"\0\0\0\0\x08" + avro("UA", 3)]
    assert decoded(spark, Avro(AVRO_FLIGHT, Confluent(7)), other) == [
        "does not begin with Confluent's framing with schema id 7"
    ]
    assert decoded(spark, Json(FLIGHT, framing=Confluent()), [b'\0\0\0\0\x07{"delay":3}']) == [(None, 3)]


@pytest.mark.parametrize(
    "codec",
    [
        Json(FLIGHT),
        Json(FLIGHT, framing=Confluent(1)),
        pytest.param(Avro(AVRO_FLIGHT), marks=pytest.mark.delta_jars),
        pytest.param(Avro(AVRO_FLIGHT, Confluent(2**31 - 1)), marks=pytest.mark.delta_jars),
        Protobuf("Flight", FLIGHT_DESCRIPTOR_SET),
        Protobuf("Flight", FLIGHT_DESCRIPTOR_SET, Confluent(7)),
    ],
)
def test_encoded_values_are_decoded(spark, codec):
    rows = spark.createDataFrame([("UA", 3), (None, 4), ("B6", None), (None, None)], FLIGHT)
    assert_same_rows(valid(decode(encode(rows, codec), codec)).select("value.*"), rows)
    keyed = rows.withColumn("flight", F.when(F.col("delay") != 4, F.struct("carrier", "delay")))
    records = encode(
        keyed, codec, value="flight", key="carrier", headers={"a": "carrier", "b": F.lit("x")},
        timestamp=F.timestamp_millis(F.lit(5)), partition=F.lit(0),
    )  # fmt: skip
    assert [field.name for field in records.schema] == ["value", "key", "headers", "timestamp", "partition"]
    tombstones = records.where("value IS NULL").select("key", "headers").collect()
    assert len(tombstones) == 3, "a struct that is null is a tombstone: also where its condition was null"
    assert tombstones[0].headers == [("a", None), ("b", b"x")]
    only = encode(rows, Json(), value=["delay"]) if isinstance(codec, Json) else None
    assert only is None or valid(decode(only, codec)).where("value.carrier IS NOT NULL").isEmpty()


def test_values_that_cannot_be_decoded_are_named(spark):
    frame = spark.createDataFrame([(b"", "", 1)], "value BINARY, raw STRING, n INT")
    with pytest.raises(InvalidOptionError, match="column 'raw': decode adds a column of this name"):
        decode(frame, Json(FLIGHT))
    frame = frame.drop("raw")
    with pytest.raises(InvalidOptionError, match=r"column 'n': expected a binary or string column, one of \['value'"):
        decode(frame, Json(FLIGHT), column="n")
    with pytest.raises(InvalidOptionError, match="schema 'carrier STRING,': not a DDL"):
        decode(frame, Json("carrier STRING,"))
    with pytest.raises(InvalidOptionError, match="schema 'INT': expected fields"):
        decode(frame, Json("INT"))
    with pytest.raises(InvalidOptionError, match="schema: required to decode JSON"):
        decode(frame, Json())
    for schema in ("{", '"string"', '{"type":"enum"}'):
        with pytest.raises(InvalidOptionError, match="not the JSON of an Avro record"):
            decode(frame, Avro(schema))
    with pytest.raises(InvalidOptionError, match="schema_id: required to encode"):
        encode(frame, Json(FLIGHT, framing=Confluent()))
    with pytest.raises(InvalidOptionError, match="schema_id: expected a number"):
        Confluent(-1)
    twice = decode(decode(frame, Json(FLIGHT)).drop("raw", "error").withColumn("key", F.lit("k")), Json(FLIGHT), "key")
    with pytest.raises(InvalidOptionError, match=r"column 'value' is struct<.*>, expected binary or string"):
        dead_letters(twice, "key")
    with pytest.raises(InvalidOptionError, match="column 'raw': missing"):
        dead_letters(frame)


@pytest.mark.parametrize(
    "codec",
    [Json(FLIGHT), Protobuf("Flight", FLIGHT_DESCRIPTOR_SET)],
    ids=["expression", "Python function"],
)
def test_a_stream_separates_decoded_rows_from_dead_letters(spark, cluster, log, tmp_path, codec):
    json_ = b'{"carrier":"UA","delay":3}'
    good, bad, reason = json_, b"{", b"not one JSON object"
    if isinstance(codec, Protobuf):
        good, bad = flight_bytes("UA", 3), flight_bytes("UA", 3)[:-1]
        reason = b"not a message of Protobuf type Flight: Wire format was corrupt"
    topic = make(cluster, "in", 2)
    outputs = [TopicOutput(str(cluster.store.address), make(cluster, name).name) for name in ("good", "dead")]

    def send(partition, *values, **columns):
        rows = table(*("" for _ in values), **columns)
        place = rows.schema.get_field_index("value")
        rows = rows.set_column(place, rows.schema.field(place), [pa.array(values, pa.binary())])
        log.append(topic, [Records(partition, rows)])

    send(1, good, bad, None, key=b"k", headers=[("own", b"1")], timestamp_ms=1000)
    send(0, bad, good)
    source = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest", includeHeaders=True)
    query = write_stream(
        decode(source, codec),
        lambda batch: list(
            zip((encode(valid(batch), Json(FLIGHT), value="value"), dead_letters(batch)), outputs, strict=True)
        ),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available-now",
    )
    query.awaitTermination()
    assert sorted(str(row["value"]) for row in everything(cluster, "good")) == ["None", str(json_), str(json_)]
    second, first = sorted(everything(cluster, "dead"), key=lambda row: row["timestamp"], reverse=True)
    assert (first["key"], first["value"], first["timestamp"].timestamp()) == (b"k", bad, 1.0)
    assert [(each["key"], each["value"]) for each in first["headers"]] == [
        ("own", b"1"),
        ("__spark_log.errors.topic", b"in"),
        ("__spark_log.errors.partition", b"1"),
        ("__spark_log.errors.offset", b"1"),
        ("__spark_log.errors.exception.message", reason),
    ]
    assert (second["key"], second["value"]) == (None, bad)
    assert [each["value"] for each in second["headers"]] == [b"in", b"0", b"0", reason]
