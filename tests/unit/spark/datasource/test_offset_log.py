"""The offsets that a group has read after a micro-batch, from Spark's offset log."""

import json
from pathlib import Path

import pytest
from pyarrow import fs

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError
from spark_log.groups.committed_offsets import Commit
from spark_log.ids import TopicId, TopicPartition
from spark_log.spark.datasource.checkpoint.batch_ends import (
    BatchEnds,
    CheckpointUnreadable,
    read_entry,
    unreadable_error,
)
from spark_log.spark.datasource.checkpoint.offset_log import ends_of_batch, fingerprint_of_batch
from spark_log.spark.datasource.checkpoint.stream_offsets import Positions, StreamOffset
from spark_log.spark.datasource.options.source_options import WriteOptions
from spark_log.spark.datasource.write.stream_writer import StreamWriter
from tests.support.topics import make

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOW = {"t": TopicId(1), "u": TopicId(2)}


def source(*ends: tuple[TopicPartition, int], cluster_id: str | None = "c", **ids: int) -> str:
    topic_ids = {name: TopicId(number) for name, number in {**NOW, **ids}.items()}
    epochs = {tp: 4 for tp, _ in ends if tp == T0}  # an older version did not note the epochs of the others
    return json.dumps(StreamOffset(Positions(dict(ends), topic_ids, epochs), cluster_id=cluster_id).to_json())


def entry(*sources: str, version: str = "v1") -> str:
    return "\n".join((version, '{"batchWatermarkMs":0}', *sources))


@pytest.mark.parametrize(
    ("sources", "ends"),
    [
        ([source((T0, 5), (T1, 7))], {T0: 5, T1: 7}),
        ([source((T0, 5)), source((U0, 2))], {T0: 5, U0: 2}),
        ([source((T0, 5), (U0, 1)), source((T0, 3))], {T0: 3, U0: 1}),  # read twice: the part that both have read
        (["-", "17", '{"t":{"0":9}}', "[{", '"{"', source((T0, 5))], {T0: 5}),  # other sources
        ([source((T0, 9), cluster_id="d"), source((T0, 9), cluster_id=None), source((T0, 5))], {T0: 5}),
        ([source((T0, 5), (U0, 1), u=3)], {T0: 5}),  # recreated since
        ([source((T0, 5), (TopicPartition("gone", 0), 1), gone=4)], {T0: 5}),
        ([source()], {}),
    ],
)
def test_ends_are_read_from_the_offset_log(sources: list[str], ends: dict[TopicPartition, int]) -> None:
    expected = {tp: (end, 4 if tp == T0 else -1) for tp, end in ends.items()}
    assert ends_of_batch(entry(*sources), "c", NOW, "g") == expected
    named = [f"s{number}:{text}" for number, text in enumerate(sources)]
    assert ends_of_batch(entry(*named, version="v2"), "c", NOW, "g") == expected


@pytest.mark.parametrize("sources", [[], ["-"], [source((T0, 1), cluster_id="d")], [source((T0, 1), cluster_id=None)]])
def test_query_without_a_source_in_the_cluster_is_refused(sources: list[str]) -> None:
    with pytest.raises(InvalidOptionError, match=r"group.id 'g': no spark_log source"):
        ends_of_batch(entry(*sources), "c", NOW, "g")


def test_offset_log_of_a_newer_spark_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="offset log of version 'v9'"):
        ends_of_batch(entry(source((T0, 1)), version="v9"), "c", NOW, "g")


def test_replanned_batch_has_another_fingerprint() -> None:
    assert fingerprint_of_batch(entry(source((T0, 1)))) == fingerprint_of_batch(entry(source((T0, 1))))
    assert fingerprint_of_batch(entry(source((T0, 1)))) != fingerprint_of_batch(entry(source((T0, 2))))
    assert len(fingerprint_of_batch("")) == 16


def test_offset_log_is_read_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tmp_path / "a checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"q"}')
    (checkpoint / "offsets" / "3").write_text(entry(source((T0, 5))))
    monkeypatch.chdir(tmp_path)
    for location in (str(checkpoint), "a checkpoint", checkpoint.as_uri()):
        assert read_entry(location, "q", 3) == entry(source((T0, 5)))
    for location, query_id, batch_id, why in [
        (str(checkpoint), "q", 4, "offsets/4"),
        (str(checkpoint), "other", 3, "it is that of query q, and this is other"),
        (str(tmp_path), "q", 3, "offsets/3"),
        ("nosuchscheme://user:secret@host/c", "q", 3, "nosuchscheme"),
    ]:
        with pytest.raises(CheckpointUnreadable) as raised:
            read_entry(location, query_id, batch_id)
        error = str(unreadable_error("g", location, raised.value))
        assert "the checkpoint cannot be read at" in error and why in error and "batch_transaction" in error
        assert "secret" not in error


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_offset_log_in_object_storage_is_read_by_the_names_of_hadoop(s3_uri: str, scheme: str) -> None:
    files, root = fs.FileSystem.from_uri(s3_uri)
    for name, text in {"metadata": '{"id":"q"}', "offsets/3": entry(source((T0, 5)))}.items():
        with files.open_output_stream(f"{root}/{name}") as stream:
            stream.write(text.encode())
    assert read_entry(s3_uri.replace("s3:", f"{scheme}:", 1), "q", 3) == entry(source((T0, 5)))


def test_sink_warns_once_of_a_checkpoint_that_it_cannot_read(caplog: pytest.LogCaptureFixture) -> None:
    options = {"cluster": "c", "topic": "t", "checkpointLocation": "nosuchscheme://user:secret@host/c"}
    writer = StreamWriter(WriteOptions.parse(options, streaming=True, environ={}))
    for batch_id in range(3):
        assert writer._in_offset_log("q", batch_id) == (None, None)
    (warning,) = caplog.messages
    assert "The checkpoint cannot be read at 'nosuchscheme://" in warning and "secret" not in warning


def test_commits_exclude_topics_that_do_not_exist(tmp_path: Path) -> None:
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        topic = make(cluster, "t", 2)
        text = entry(source((T0, 5), (U0, 1), cluster_id=cluster.cluster_id, t=topic.topic_id, u=99))
        assert BatchEnds("g", text).commits(cluster) == {T0: Commit(5, "", 4, topic.topic_id)}
