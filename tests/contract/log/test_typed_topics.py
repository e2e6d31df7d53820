"""Typed topics on both stores: the columns in files, in Delta tables and in reads are the decoded values.

`tests/support/schemas.py` has the oracle. It is asked for each value of each file, with the fields of the file,
and for each value that a reader gets, with the present fields of the topic.
"""

import io
import json

import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from spark_log import Producer
from spark_log.errors import IncompatibleSchemaError, InvalidConfigurationError, InvalidRecordError
from spark_log.log.columns.key_and_value import PARTS, TYPED
from spark_log.log.columns.protobuf.schema import protobuf_schema
from spark_log.log.log import Records
from spark_log.log.records.schema import normalise, read_schema
from spark_log.maintenance import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.publication import delta_tables
from tests.support.python_process import killed_at
from tests.support.records import NOON_MS, read_rows, table
from tests.support.schemas import (
    KEYS,
    SCHEMA,
    SHORT,
    WIDER,
    check_columns,
    check_records,
    descriptor_set,
    document,
    files,
    oracle,
    typed,
)
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, make

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]


def test_sealed_and_bulk_written_files_have_the_fields_as_columns(cluster, log):
    topic = typed(cluster, inline_max_bytes="4096", delta_max_lag_ms="-1", **KEYS)
    append(log, topic, document(1), "{oops", document(2, price="2"), "[]", key=b'{"n": 1, "item": "k"}')
    append(log, topic, document(3), key=b'{"n": "1"}')
    check_columns(cluster, log)  # decoded while the tail is read
    list(run_tasks(cluster, ["seal"], now=True))
    rows = table(*(document(n) * (n != 7) for n in range(2_999)))
    keys = pa.array([None, *(document(n).encode() * (n != 9) for n in range(1, 2_999))], pa.binary())
    log.append(topic, [Records(0, rows.set_column(0, rows.schema.field("key"), keys))])
    assert len(check_columns(cluster, log)) == 3_004
    assert [version for version, _ in files(cluster, topic)] == [1, 1]
    [location] = delta_tables(cluster, topic).values()
    rows = DeltaTable(location).to_pyarrow_table(columns=["key", "value", *TYPED])
    check_records(rows)
    good = [rows.column(part.record).null_count for part in PARTS]
    assert (rows.num_rows, good) == (3_004, [3, 4])
    protocol = DeltaTable(location).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


@pytest.mark.on_data_store
def test_a_new_field_is_a_new_column_for_new_files_and_old_files_get_it_on_request(cluster, log):
    topic = typed(cluster, inline_max_bytes="0")
    append(log, topic, document(1, note="a"), document(2))
    altered = alter_configs(cluster, "orders", {"value.schema": WIDER})
    assert (altered.columns.version, altered.columns.value.fields.names) == (2, ["item", "price", "n", "note"])
    before = files(cluster, topic)
    append(log, altered, document(3, note="b"))
    assert files(cluster, topic)[0][1].equals(before[0][1])
    [location] = delta_tables(cluster, topic).values()
    notes = DeltaTable(location).to_pyarrow_table(columns=["record"]).column("record").to_pylist()
    assert sorted((row["n"], row["note"]) for row in notes) == [(1, None), (2, None), (3, "b")]
    check_columns(cluster, log)
    assert [report.notes for report in run_tasks(cluster, ["columns"], dry_run=True)] == [
        ("1 file without the present columns are written again",)
    ]
    [report] = run_tasks(cluster, ["columns"])
    assert (report.before.files, report.after.files) == (1, 1)
    assert list(run_tasks(cluster, ["columns"])) == []
    assert [version for version, _ in files(cluster, topic)] == [2, 2]
    check_columns(cluster, log)
    notes = DeltaTable(location).to_pyarrow_table(columns=["record"]).column("record").to_pylist()
    assert sorted((row["n"], row["note"]) for row in notes) == [(1, "a"), (2, None), (3, "b")]
    assert_delta_is_the_log(cluster)  # the rewritten file is no data change


@pytest.mark.on_data_store
def test_a_merge_gives_all_records_the_present_columns(cluster, log):
    topic = make(cluster, "orders", inline_max_bytes="0", retention_ms="-1")
    append(log, topic, document(1), "{oops")
    topic = alter_configs(cluster, "orders", {"value.format": "json", "value.schema": SCHEMA})
    append(log, topic, document(2))
    topic = alter_configs(cluster, "orders", {"value.schema": WIDER})
    append(log, topic, document(3, note="c"))
    assert [version for version, _ in files(cluster, topic)] == [None, 1, 2]
    list(run_tasks(cluster, ["merge"]))
    assert [version for version, _ in files(cluster, topic)] == [2]
    assert len(check_columns(cluster, log)) == 4
    assert_delta_is_the_log(cluster)


def test_a_schema_that_does_not_fit_the_columns_is_refused(cluster, log):
    topic = typed(cluster)
    for schema, named in ({"item BIGINT": "item", "ITEM STRING": "ITEM", "price STRUCT<a: INT>": "price"}).items():
        with pytest.raises(IncompatibleSchemaError, match=named):
            alter_configs(cluster, "orders", {"value.schema": schema})
    with pytest.raises(InvalidConfigurationError, match=r"needs value\.schema"):
        make(cluster, "other", value_format="json")
    with pytest.raises(InvalidConfigurationError, match="no field 'prize'"):
        make(cluster, "other", value_format="json", value_schema=SCHEMA, value_columns="item,prize")
    assert log.find_topic("orders") == topic


def test_columns_stay_when_fields_or_the_format_are_removed(cluster, log):
    topic = typed(cluster, inline_max_bytes="0")
    append(log, topic, document(1))
    alter_configs(cluster, "orders", {"value.format": None, "value.schema": None})
    plain = log.find_topic("orders")
    assert plain.columns is None
    append(log, plain, document(2))
    topic = alter_configs(cluster, "orders", {"value.format": "json", "value.schema": "n INT"})
    append(log, topic, document(3))
    assert topic.columns.value.fields.names == ["item", "price", "n"]
    [location] = delta_tables(cluster, topic).values()
    found = DeltaTable(location).to_pyarrow_table(columns=["record"]).column("record").to_pylist()
    assert sorted(map(str, found)) == sorted(map(str, [oracle(document(1), SHORT), None, oracle(document(3), SHORT)]))
    check_columns(cluster, log)


def test_keys_may_be_typed_alone_and_before_or_after_the_values(cluster, log):
    topic = make(cluster, "orders", inline_max_bytes="0", retention_ms="-1", **KEYS, key_columns="n")
    append(log, topic, document(1), key=document(7).encode())
    steps = [
        {"value.format": "json", "value.schema": SCHEMA}, {"key.format": "bytes"}, {"key.format": "json"},
        {"key.columns": "all"}, {"value.format": "bytes"},
    ]  # fmt: skip
    for number, changes in enumerate(steps, 2):
        topic = alter_configs(cluster, "orders", changes)
        assert topic.columns.version == number
        append(log, topic, document(number), "{", key=b'{"n": %d, "item": "k"}' % number)
        append(log, topic, document(number), key=b"bad")
        check_columns(cluster, log)
    of_key, of_value = ["key_record_error", "key_record"], ["record_error", "record"]
    found = [rows.schema.names[5:] for _, rows in files(cluster, topic)]
    both = of_key + of_value
    assert found == [of_key, both, both, of_value, of_value, both, both, both, both, of_key, of_key]
    [location] = delta_tables(cluster, topic).values()
    dataset = DeltaTable(location).to_pyarrow_dataset()
    for name in ("key_record_error", "record_error"):  # also where a file has bounds, but not of this column
        for holds, count in ((ds.field(name).is_valid(), 4), (ds.field(name).is_null(), 12)):
            assert dataset.to_table(filter=holds).num_rows == count, (name, holds)
    list(run_tasks(cluster, ["columns"]))
    assert {version for version, _ in files(cluster, topic)} == {6}
    check_columns(cluster, log)
    assert_delta_is_the_log(cluster)


def test_only_the_named_fields_become_columns(cluster, log):
    topic = typed(cluster, value_columns="n, item", inline_max_bytes="0")
    append(log, topic, document(1))
    [(_, rows)] = files(cluster, topic)
    assert rows.column("record").to_pylist() == [{"item": "i1", "n": 1}]


def test_rejected_keys_and_values_are_errors_of_their_records_alone(cluster, log):
    typed(cluster, value_bad_records="reject")
    typed(cluster, "keyed", **KEYS, key_bad_records="reject")
    with Producer(cluster=str(cluster.store.address)) as producer:
        futures = [producer.send("orders", key=b"k", value=value) for value in (document(1).encode(), b"{oops", None)]
        assert [futures[0].get().offset, futures[2].get().offset] == [0, 1]
        with pytest.raises(InvalidRecordError, match="row 1: not valid JSON"):
            futures[1].get()
        with pytest.raises(InvalidRecordError, match="row 1: not a JSON object"):
            producer.send_table("orders", pa.table({"value": [document(2), "[1"]})).get()
        futures = [producer.send("keyed", key=key, value=b"{oops") for key in (b'{"n": 1}', b'{"n": "1"}', None)]
        assert [futures[0].get().offset, futures[2].get().offset] == [0, 1]
        with pytest.raises(InvalidRecordError, match="key: in row 1: n: expected BIGINT, got a string"):
            futures[1].get()
    assert list(check_columns(cluster, log).values()) == [document(1).encode(), None]


def test_avro_values_are_columns_too(cluster, log):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": "int"}, {"name": "item", "type": ["null", "string"]}],
    }
    topic = typed(cluster, value_format="avro", value_schema=json.dumps(schema), inline_max_bytes="0")
    records = [{"n": 1, "item": "a"}, {"n": -2, "item": None}]
    values = []
    for record in records:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, record)
        values.append(buffer.getvalue())
    log.append(topic, [Records(0, normalise(pa.table({"value": [*values, values[0] + b"x"]}), timestamp_ms=NOON_MS))])
    [(_, rows)] = files(cluster, topic)
    assert rows.column("record").to_pylist() == [*records, None]
    assert [reason is None for reason in rows.column("record_error").to_pylist()] == [True, True, False]
    with pytest.raises(InvalidConfigurationError, match="registry"):
        alter_configs(cluster, "orders", {"value.framing": "confluent"})


def test_protobuf_values_are_columns_and_a_message_may_get_fields(cluster, log):
    older, newer, other = (
        protobuf_schema("Flight", descriptor_set("Flight", fields))
        for fields in (
            {"carrier": "TYPE_STRING"},
            {"carrier": "TYPE_STRING", "delay": "TYPE_INT64"},
            {"delay": "TYPE_STRING", "carrier": "TYPE_INT64"},
        )
    )
    topic = typed(cluster, value_format="protobuf", value_schema=older, inline_max_bytes="0")
    values = [b"\x0a\x02AA\x10\x05", b"\x0a\x02AA\x10", b"\x0a", None]
    log.append(topic, [Records(0, normalise(pa.table({"value": pa.array(values)}), timestamp_ms=NOON_MS))])
    [(_, rows)] = files(cluster, topic)
    assert rows.column("record").to_pylist() == [{"carrier": "AA"}, None, None, None]
    assert [reason is None for reason in rows.column("record_error").to_pylist()] == [True, False, False, True]
    topic = alter_configs(cluster, "orders", {"value.schema": newer})
    assert topic.columns.version == 2
    list(run_tasks(cluster, ["columns"]))
    [(version, rows)] = files(cluster, topic)
    assert (version, rows.column("record").to_pylist()[0]) == (2, {"carrier": "AA", "delay": 5})
    with pytest.raises(IncompatibleSchemaError, match="carrier: the column is STRING"):
        alter_configs(cluster, "orders", {"value.schema": other})
    with pytest.raises(InvalidConfigurationError, match="registry"):
        alter_configs(cluster, "orders", {"value.framing": "confluent"})


BACKFILL = """
import sys
from spark_log.maintenance import run_tasks
list(run_tasks(sys.argv[1], ["columns"]))
"""


@pytest.mark.on_data_store
@pytest.mark.parametrize("step", ["columns.file-written", "columns.committed"])
def test_a_killed_backfill_is_completed_by_the_next(cluster, cluster_address, log, step):
    topic = make(cluster, "orders", inline_max_bytes="0", retention_ms="-1")
    append(log, topic, document(1), "{oops")
    alter_configs(cluster, "orders", {"value.format": "json", "value.schema": SCHEMA})
    killed_at(step, "-c", BACKFILL, cluster_address)
    list(run_tasks(cluster, ["columns", "delta"]))
    assert [version for version, _ in files(cluster, topic)] == [1]
    check_columns(cluster, log)
    assert_delta_is_the_log(cluster)


@pytest.mark.on_data_store
@pytest.mark.parametrize("task", ["columns", "merge"])
def test_a_reset_gives_a_field_another_column_and_every_reader_sees_both(cluster, log, task):
    topic = typed(cluster, inline_max_bytes="0")
    append(log, topic, document(1), document(2, price=None))
    [location] = delta_tables(cluster, topic).values()

    def prices():
        rows = DeltaTable(location).to_pyarrow_table(columns=["record"]).to_pylist()
        return sorted(([row["record"].get(name) for name in ("price", "price__v2")] for row in rows), key=repr)

    def read():
        schema = read_schema(columns=["offset", "record"], typed=log.find_topic("orders").columns.fields)
        rows = read_rows(log, topic, schema)
        return {row["offset"]: (row["record"]["price"], row["record"]["price__v2"]) for row in rows}

    text = SCHEMA.replace("price DOUBLE", "price STRING")
    with pytest.raises(IncompatibleSchemaError, match="--reset"):
        alter_configs(cluster, "orders", {"value.schema": text})
    topic = alter_configs(cluster, "orders", {"value.schema": text}, reset=True)
    assert prices() == [[0.5, None], [None, None]]
    assert read() == {0: (0.5, "0.5"), 1: (None, None)}
    for price in ("free", "?"):
        append(log, topic, document(3, price=price))
    assert prices() == [[0.5, None], [None, "?"], [None, "free"], [None, None]]
    assert_delta_is_the_log(cluster)
    list(run_tasks(cluster, [task, "delta"]))
    assert prices() == [[0.5, "0.5"], [None, "?"], [None, "free"], [None, None]]
    assert read() == {0: (0.5, "0.5"), 1: (None, None), 2: (None, "free"), 3: (None, "?")}
    assert {version for version, _ in files(cluster, topic)} == {2}
    assert_delta_is_the_log(cluster)
    protocol = DeltaTable(location).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_after_a_reset_old_values_are_good_and_new_ones_have_to_fit_the_present_schema(cluster, log):
    topic = typed(cluster, value_schema="price STRING", value_bad_records="reject")
    append(log, topic, '{"price": "free"}')
    topic = alter_configs(cluster, "orders", {"value.schema": "price BIGINT"}, reset=True)
    append(log, topic, '{"price": 7}')
    with pytest.raises(InvalidRecordError, match="price: expected BIGINT, got a string"):
        append(log, topic, '{"price": "8"}')
    list(run_tasks(cluster, ["seal"], now=True))
    [(_, rows)] = files(cluster, topic)
    assert rows.column("record").to_pylist() == [{"price": "free", "price__v2": None}, {"price": "7", "price__v2": 7}]
    assert rows.column("record_error").null_count == 2
