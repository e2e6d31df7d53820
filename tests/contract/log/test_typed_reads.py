"""Reads of single fields of typed columns, and publication of typed topics."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_log import Consumer
from spark_log.errors import InvalidOptionError
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.erase.erase import erase
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables import publication
from spark_log.tables.publication import delta_tables
from tests.support.records import ranges_of
from tests.support.schemas import KEYS, SCHEMA, WIDER, document, typed
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, make

pytestmark = pytest.mark.on_sqlite

SOON_MS = 10_000


def test_poll_arrow_reads_the_named_columns_alone(cluster, log):
    plain = make(cluster, "orders", inline_max_bytes="0", retention_ms="-1", delta_max_lag_ms="-1")
    append(log, plain, document(1, note="a"))
    nested = SCHEMA + ", lines ARRAY<STRUCT<sku: STRING, n: INT>>"
    topic = alter_configs(cluster, "orders", {"value.format": "json", "value.schema": nested})
    topic = alter_configs(cluster, "orders", {name.replace("_", "."): text for name, text in KEYS.items()})
    append(log, topic, document(2, lines=[{"sku": "s", "n": 1}]), "{oops", key=b'{"n": 2}')
    append(log, alter_configs(cluster, "orders", {"inline.max.bytes": None}), document(3), key=b"k")
    with Consumer("orders", cluster=str(cluster.store.address), auto_offset_reset="earliest") as consumer:
        [first] = consumer.poll(SOON_MS, max_records=1).values()
        assert first[0].value == document(1, note="a").encode()
        [found] = consumer.poll_arrow(SOON_MS, columns=["record.lines.sku", "record.price", "offset"]).values()
        assert found.schema.names == ["record", "offset"]
        assert [field.name for field in found.schema.field("record").type] == ["price", "lines"]
        assert found.to_pylist() == [
            {"record": {"price": 1.0, "lines": [{"sku": "s"}]}, "offset": 1},
            {"record": None, "offset": 2},
            {"record": {"price": 1.5, "lines": None}, "offset": 3},
        ]
        consumer.seek_to_beginning()
        alter_configs(cluster, "orders", {"value.schema": nested + ", note STRING"})
        [found] = consumer.poll_arrow(SOON_MS, columns=["record.note", "record_error"]).values()
        assert found.column("record").to_pylist() == [{"note": "a"}, {"note": None}, None, {"note": None}]
        assert found.column("record_error").is_valid().to_pylist() == [False, False, True, False]
        consumer.seek_to_beginning()
        [found] = consumer.poll_arrow(SOON_MS, columns=["key_record.n", "key_record_error"]).values()
        assert found.column("key_record").to_pylist() == [None, {"n": 2}, {"n": 2}, None]
        assert found.column("key_record_error").is_valid().to_pylist() == [False, False, False, True]
        alter_configs(cluster, "orders", {"key.format": "bytes"})
        consumer.seek_to_beginning()
        consumer.poll(SOON_MS)  # other columns, so that the types are looked up again
        consumer.seek_to_beginning()
        with pytest.raises(InvalidOptionError, match=r"no column key_record: set key\.format"):
            consumer.poll_arrow(SOON_MS, columns=["key_record"])
        with pytest.raises(InvalidOptionError, match=r"no field 'record\.prize'"):
            consumer.poll_arrow(SOON_MS, columns=["record.prize"])
        with pytest.raises(InvalidOptionError, match="expected distinct names"):
            consumer.poll_arrow(SOON_MS, columns=["size"])
        [found] = consumer.poll(SOON_MS).values()
        assert [record.offset for record in found] == [0, 1, 2, 3]


def test_a_read_of_one_field_decodes_only_its_pages(cluster, log, monkeypatch):
    topic = typed(cluster, inline_max_bytes="0")
    append(log, topic, document(1))
    read = []
    iter_batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, **options: read.append(options["columns"]) or iter_batches(self, **options),
    )
    schema = read_schema(
        columns=["offset", "record"], typed=pa.struct([("record", pa.struct([("price", pa.float64())]))])
    )
    [batch] = log.read(ranges_of(log, topic), schema)
    assert batch.to_pylist() == [{"offset": 0, "record": {"price": 0.5}}]
    assert read == [["record.price"]]


@pytest.mark.delta
def test_publication_opens_the_delta_table_only_where_it_may_lack_columns(cluster, log, monkeypatch):
    topic = typed(cluster, inline_max_bytes="0", delta_max_lag_ms="-1")
    append(log, topic, document(1))
    publication.publish(cluster, topic)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "open_table", lambda *_, **__: pytest.fail("opened"))
        append(log, topic, document(2))
        publication.publish(cluster, topic)
    topic = alter_configs(cluster, "orders", {"value.schema": WIDER})
    append(log, topic, document(3, note="c"))  # adds the column
    publication.publish(cluster, topic)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "open_table", lambda *_, **__: pytest.fail("opened"))
        append(log, topic, document(4, note="d"))
        publication.publish(cluster, topic)
    [location] = delta_tables(cluster, topic).values()
    records = DeltaTable(location).to_pyarrow_table(columns=["record"]).column("record").to_pylist()
    assert sorted((record["n"], record["note"]) for record in records) == [(1, None), (2, None), (3, "c"), (4, "d")]
    assert_delta_is_the_log(cluster)


@pytest.mark.delta
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_purge_names_a_delta_log_that_has_bounds_of_removed_files(cluster, log, checkpoint):
    topic = typed(cluster, inline_max_bytes="0", delta_max_lag_ms="-1")
    append(log, topic, document(1), key=b"kept")
    publication.publish(cluster, topic)
    assert not [note for note in erase(cluster, "orders", [b"gone"], purge=True).notes if "Delta log" in note]
    append(log, topic, document(2), key=b"gone")
    publication.publish(cluster, topic)
    [location] = delta_tables(cluster, topic).values()
    if checkpoint:  # the bounds are in the checkpoint alone
        append(log, topic, document(3), key=b"kept")
        publication.publish(cluster, topic)
        DeltaTable(location).create_checkpoint()
        for commit in sorted(Path(location, "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()
    notes = erase(cluster, "orders", [b"gone"], purge=True).notes
    assert [note for note in notes if "Delta log" in note and "30 days" in note]
    assert_delta_is_the_log(cluster)
