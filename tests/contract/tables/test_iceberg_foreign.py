"""What other programs do to a topic's Iceberg table is undone by the next publication."""

import io
import json
import shutil
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_log.errors import CorruptRecordError
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.iceberg import manifests
from spark_log.tables.iceberg.metadata_files import commit, open_table
from spark_log.tables.iceberg.table import next_metadata
from spark_log.tables.publication import publish
from spark_log.tables.publication_state import PublishedFile
from spark_log.tables.verification import rebuild
from tests.support.iceberg import CONFIGS, by_duckdb, by_pyiceberg, check, folder_of, metadata_path, snapshots_of
from tests.support.stores import rows_of
from tests.support.topics import append, fill, make

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]


def test_files_that_another_writer_has_removed_return(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "a")
    append(log, topic, "b")
    publish(cluster, topic)
    log_dir, folder = folder_of(cluster, topic)
    table = open_table(log_dir, folder, "other")
    foreign = json.loads(metadata_path(cluster, topic).read_text())
    foreign["current-snapshot-id"] = foreign["snapshots"][0]["snapshot-id"]
    foreign["refs"]["main"]["snapshot-id"] = foreign["current-snapshot-id"]
    path = Path(log_dir.location(f"{folder}/metadata/v{table.version + 1}.metadata.json"))
    path.write_text(json.dumps(foreign))
    check(cluster, topic)


@pytest.mark.parametrize("deleted_first", [False, True])
def test_a_table_that_was_deleted_is_made_again(cluster, log, deleted_first):
    """Its folder is deleted before or after the publication that empties the table."""
    topic = make(cluster, "t", 2, **CONFIGS)
    fill(log, topic, [2, 1])
    publish(cluster, topic)
    folder = metadata_path(cluster, topic).parent
    if deleted_first:
        shutil.rmtree(folder)
    publish(cluster, alter_configs(cluster, "t", {"table.formats": "delta"}))
    if not deleted_first:
        shutil.rmtree(folder)
    assert "iceberg" not in str(rows_of(cluster, t.publication, t.publication_cursor))
    topic = alter_configs(cluster, "t", {"table.formats": "delta,iceberg"})
    append(log, topic, "more", partition=1)
    check(cluster, topic, ["append"])


@pytest.mark.parametrize("pattern", ["v1.metadata.json", "snap-*.avro", "*-m0.avro"])
def test_damaged_metadata_are_written_anew_on_request(cluster, log, pattern):
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "a")
    publish(cluster, topic)
    [path] = metadata_path(cluster, topic).parent.glob(pattern)
    path.write_bytes(path.read_bytes()[:-40])
    append(log, topic, "b")
    with pytest.raises(CorruptRecordError, match=rf"{path.name} is .*table rebuild"):
        publish(cluster, topic)
    rebuild(cluster, topic, "iceberg")
    check(cluster, topic)


def test_a_file_of_another_writer_is_removed(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "a")
    publish(cluster, topic)
    log_dir, folder = folder_of(cluster, topic)
    foreign = PublishedFile("data/partition=0/x.parquet", 0, 7, 8, 9, 1, 1, False)
    table = open_table(log_dir, folder, "other")
    assert commit(table, next_metadata(table, [foreign], [], {}, topic.columns, 0, 0, 10**9))
    Path(log_dir.location(f"{folder}/metadata/version-hint.text")).write_bytes(b"\xff")
    append(log, topic, "b")
    check(cluster, topic, ["delete", "append"])
    times = [each["timestamp-ms"] for each in snapshots_of(cluster, topic)]
    assert times == sorted(times), "the other writer's clock was behind"


def test_rows_that_another_writer_has_deleted_return(cluster, log):
    """It has written a position delete file, as Spark does with write.delete.mode=merge-on-read."""
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "a", "b", "c")
    append(log, topic, "d")
    publish(cluster, topic)
    delete_row(cluster, topic, row=1)
    assert by_pyiceberg(cluster, topic) == by_duckdb(cluster, topic) == {0: ["a", "c", "d"]}
    check(cluster, topic)
    table = open_table(*folder_of(cluster, topic), "")
    listed = [
        entry["data_file"]["content"]
        for manifest in table.manifests_of(snapshots_of(cluster, topic)[-1])
        for entry in fastavro.reader(io.BytesIO(Path(manifest["manifest_path"]).read_bytes()))
    ]
    assert listed == [0, 0], "a manifest of data files has no other files, not even removed ones"
    append(log, topic, "e")
    check(cluster, topic, ["append"])


def delete_row(cluster, topic, row):
    """Commit a file that deletes a row of the first data file."""
    log_dir, folder = folder_of(cluster, topic)
    table, path = open_table(log_dir, folder, "other"), metadata_path(cluster, topic)
    metadata = json.loads(path.read_text())
    [manifest] = table.manifests_of(metadata["snapshots"][-1])
    [first, _] = manifests.read_manifest(Path(manifest["manifest_path"]).read_bytes(), manifest)
    deletes, sequence = path.with_name("deletes.parquet"), metadata["last-sequence-number"] + 1
    ids = [{b"PARQUET:field_id": number} for number in (b"2147483546", b"2147483545")]
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata=ids[0]),
            pa.field("pos", pa.int64(), nullable=False, metadata=ids[1]),
        ]
    )
    pq.write_table(pa.table([[first["data_file"]["file_path"]], [row]], schema=schema), deletes)
    data_file = {
        **first["data_file"],
        "content": 1,
        "file_path": str(deletes),
        "record_count": 1,
        "file_size_in_bytes": deletes.stat().st_size,
    }
    entry = {
        "status": manifests.ADDED,
        "snapshot_id": 1,
        "sequence_number": sequence,
        "file_sequence_number": sequence,
        "data_file": data_file,
    }
    content = manifests.write_manifest([entry], metadata["schemas"][-1]).replace(b"\x08data", b"\x0edeletes")
    path.with_name("deletes.avro").write_bytes(content)
    location = str(path.with_name("deletes.avro"))
    of_deletes = manifests.describe_manifest(location, len(content), [entry], 1, sequence) | {"content": 1}
    path.with_name("list.avro").write_bytes(manifests.write_manifest_list([manifest, of_deletes], 1, None, sequence))
    snapshot = metadata["snapshots"][-1] | {
        "snapshot-id": 1,
        "sequence-number": sequence,
        "manifest-list": str(path.with_name("list.avro")),
        "summary": {"operation": "delete"},
    }
    metadata["snapshots"].append(snapshot)
    metadata |= {"current-snapshot-id": 1, "last-sequence-number": sequence}
    metadata["refs"]["main"]["snapshot-id"] = 1
    path.with_name(f"v{table.version + 1}.metadata.json").write_text(json.dumps(metadata))
    path.with_name("version-hint.text").write_text(str(table.version + 1))
