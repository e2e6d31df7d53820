"""`stream_topic` streams a topic: its history with Spark's own Parquet scan, and new records as they arrive.

A Delta log with one commit lists the segment files that existed when the stream was first created: the *history*. A
partition's records below the history's end come from these files, later ones from format("spark_log"). Each of the two
sources has its own offsets in the query's checkpoint, so each record is read once, however often the query restarts.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, takewhile
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from spark_log.cluster.cluster import Cluster, cluster_of
from spark_log.cluster.files.new_file import make_folders
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.log_dir_uris import normalise_uri
from spark_log.cluster.topics import Topic, find_topic
from spark_log.errors import DataLossError, InvalidConfigurationError, InvalidOptionError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.columns.key_and_value import TYPED
from spark_log.log.partitions.lineage import diverging_offset
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.records.read_shape import STORED
from spark_log.log.records.schema import read_schema
from spark_log.log.segments import plan as planner
from spark_log.log.segments.segment_scan import check_file_settings, check_file_systems, for_spark, whole_files
from spark_log.log.segments.slices import Slice
from spark_log.log.segments.typed_columns import has_present_columns
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.spark.datasource.options.offset_json import EARLIEST, offsets_to_dict
from spark_log.spark.datasource.options.starting_lineage import StartingLineage
from spark_log.spark.delta_jars import check_loaded

_COMMIT = f"_delta_log/{0:020d}.json"
_PARTITION_COLUMNS = {"partition": pa.int32(), "base_offset": pa.int64(), "timestampType": pa.int32()}
"""Values that a file's rows do not contain. Delta adds them to each row."""
_FACTS = "spark-log.history"
_FOREIGN = "history {!r} has a Delta log that stream_topic has not written: use another folder"


@dataclass(frozen=True)
class _History:
    """The description of a history in its Delta log: the topic, the columns, and for each partition the range of
    offsets in its files and the leader epoch at that time.

    Files may also have offsets below these ranges, which were before the log start offset. Histories of older versions
    of spark-log have no epochs.
    """

    cluster_id: str
    topic: str
    topic_uuid: str
    record: bool
    include_headers: bool
    ranges: Mapping[int, tuple[int, int]]
    epochs: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def from_json(text: str) -> "_History":
        facts = json.loads(text)
        facts["ranges"] = {int(number): (start, end) for number, (start, end) in facts["ranges"].items()}
        facts["epochs"] = {int(number): epoch for number, epoch in facts.get("epochs", {}).items()}
        return _History(**facts)


def stream_topic(
    spark: SparkSession,
    cluster: "str | Cluster",
    topic: str,
    *,
    history: str,
    record: bool = False,
    include_headers: bool = False,
    max_files_per_trigger: int = 1000,
    client_rack: str | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of all records of a topic. Spark's own Parquet scan reads the records that are in
    files now, and `format("spark_log")` the later ones. The columns are those of `read_topic`.

    `history` is a folder or an s3:// URI, in which the list of these files is stored. Keep it like the query's
    checkpoint: a restart with the same checkpoint needs the same `history`. Give each query its own. A trigger reads at
    most `max_files_per_trigger` of the files, the oldest first, and all new records.

    Each record is read once. Within a partition, the records of the history are in order, and so are the new ones, but
    the first batches have both. So with a watermark, let the first batch read the whole history
    (`max_files_per_trigger`): otherwise Spark drops the rest of the history as late. Each file is read from one log
    dir, if possible in `client_rack`. Files stay on disk for file.delete.delay.ms after maintenance has replaced them
    (file.delete.delay.fresh.ms for new ones). If the history is not read until then, or records of it were erased, the
    query ends with the name of the missing file. Then begin again with a new checkpoint and `history`.

    Raises ClusterNotFoundError, UnknownTopicOrPartitionError, DeltaNotInstalledError, and InvalidOptionError if
    `history` belongs to another topic, cluster or choice of columns. Raises InvalidConfigurationError if the session
    ignores missing or corrupt files, and with `record` for a topic without typed columns or with files that lack the
    present ones. Raises DataLossError if an unclean leader election has removed records of `history` from the log.
    """
    check_loaded(spark)
    check_file_settings(spark)
    with cluster_of(cluster) as opened:
        folder = LogDir(normalise_uri(history.replace("s3a://", "s3://", 1)))
        commit = _read(folder)
        if commit is None:
            _create(spark, folder, _snapshot(opened, topic, record, include_headers, client_rack))
            commit = _read(folder)
        assert commit is not None, "written before"
        made = _History.from_json(commit["metaData"]["configuration"][_FACTS])
        current = opened.store.read(lambda connection: find_topic(connection, topic))
        expected = _History(opened.cluster_id, topic, current.uuid, record, include_headers, made.ranges, made.epochs)
        if made != expected:
            raise InvalidOptionError(_mismatch(history, made, expected))
        _check_lineage(opened, current, made, history)
        address = cluster if isinstance(cluster, str) else opened.store.address.with_password
    past = _past(spark, for_spark(folder.location("").rstrip("/")), made, max_files_per_trigger)
    return past.unionByName(_present(spark, address, made, current, past.columns), allowMissingColumns=record)


def _mismatch(history: str, made: _History, expected: _History) -> str:
    differences = [
        f"{name} {here!r}, expected {there!r}"
        for name, here, there in ((name, vars(made)[name], vars(expected)[name]) for name in vars(made))
        if here != there
    ]
    return (
        f"history {redact(history)!r} was made for {', '.join(differences)}: use another folder, and a new checkpoint"
    )


def _check_lineage(cluster: Cluster, topic: Topic, made: _History, history: str) -> None:
    """Raise DataLossError if an unclean election has removed records of the history from the log since."""
    keys = [(topic.topic_id, number) for number in made.epochs]
    truncations = cluster.of(topic).store.read(lambda connection: read_truncations(connection, keys))
    for (_, number), those in truncations.items():
        end = made.ranges[number][1]
        cut = diverging_offset(end, made.epochs[number], those)
        if cut is not None:
            raise DataLossError(
                f"history {redact(history)!r} has records of {made.topic}-{number} up to offset {end}, of which those"
                f" from offset {cut} on were lost by an unclean leader election: begin again with a new checkpoint and"
                " history"
            )


# The history -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Snapshot:
    """A new history: its description, its files in the order of reading, and their locations and schema."""

    facts: _History
    files: Sequence[Slice]
    locations: Sequence[str]
    schema: pa.Schema


def _snapshot(cluster: Cluster, name: str, record: bool, include_headers: bool, client_rack: str | None) -> _Snapshot:
    """Return the history with the files of each partition up to its first inline segment."""

    def read(
        connection: sa.Connection,
    ) -> tuple[Topic, Mapping[TopicPartition, planner.PartitionSnapshot], list[Slice], dict[str, int]]:
        topic = find_topic(connection, name)
        numbers = [TopicPartition(name, number) for number in range(topic.partition_count)]
        limits = planner.find_positions(connection, numbers)
        ranges = {tp: OffsetRange(*limits[tp].positions) for tp in numbers}
        slices = planner.plan(connection, {name: topic}, ranges, rack=client_rack)
        times = sa.select(SEGMENT.name, SEGMENT.appended_ms).where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline)
        return topic, limits, slices, {row.name: row.appended_ms for row in connection.execute(times)}

    cluster = cluster.of(cluster.home.store.read(lambda connection: find_topic(connection, name)))
    topic, limits, slices, appended_ms = cluster.store.read(read)
    log_dirs = cluster.log_dirs()  # read after the slices, so that it has all log dirs of the slices
    if record and topic.columns is None:
        raise InvalidConfigurationError(f"topic {name!r} has no typed columns: set value.format and value.schema")
    starts = {tp.partition: limit.positions.log_start_offset for tp, limit in limits.items()}
    ranges = {number: (start, start) for number, start in starts.items()}
    epochs = {tp.partition: limit.leader_epoch for tp, limit in limits.items()}
    timed: list[tuple[int, Slice]] = []
    for number, pieces in groupby(slices, attrgetter("partition")):
        files = list(takewhile(lambda piece: piece.data is None, pieces))
        if files:
            ranges[number] = (ranges[number][0], files[-1].end)
        # the clock may have been set back: the order in a partition is that of offsets
        timed += zip(accumulate((appended_ms[piece.name] for piece in files), max), files, strict=True)
    files = [piece for _, piece in sorted(timed, key=itemgetter(0))]
    if record and not all(map(has_present_columns, files)):
        raise InvalidConfigurationError(
            f"topic {name!r} has files without the present typed columns: run"
            f" `spark-log maintenance columns --topic {name}` first"
        )
    typed = topic.columns.fields if record and topic.columns is not None else None
    shape = read_schema(include_headers, typed=typed)
    stored = [field for field in shape if field.name in STORED]
    facts = [pa.field(column, kind) for column, kind in _PARTITION_COLUMNS.items()]
    schema = pa.schema([pa.field("offset_delta", pa.int32()), *stored, *facts])
    made = _History(cluster.cluster_id, name, topic.uuid, record, include_headers, ranges, epochs)
    return _Snapshot(made, files, whole_files(files, log_dirs) if files else [], schema)


def _create(spark: SparkSession, folder: LogDir, snapshot: _Snapshot) -> None:
    """Write the Delta log of a history, unless another process was faster. Its only commit creates the history.

    In an object store without exclusive creation (`creates_whole`), a process may replace a commit that another one has
    just written. Delta then refuses the checkpoint of that other process, since the table's id differs.
    """
    check_file_systems(spark, [for_spark(each) for each in (*snapshot.locations[:1], folder.location(""))])
    content = b"".join(json.dumps(action).encode() + b"\n" for action in _actions(snapshot))
    failpoint("stream.history-planned")
    if folder.local:
        make_folders(Path(folder.location("_delta_log")), Path("/"))
    if folder.creates_whole:
        folder.create_whole(_COMMIT, content)
    elif folder.sizes([_COMMIT]) == [None]:
        folder.put(_COMMIT, content)
    failpoint("stream.history-written")


def _actions(snapshot: _Snapshot) -> list[dict[str, Any]]:
    """Return the actions of the commit, with the files in the order in which Delta's stream reads them."""
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"operation": "CREATE TABLE", "operationParameters": {}, "engineInfo": "spark-log"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": str(uuid.uuid4()),  # Spark refuses a checkpoint that has read another history
                "format": {"provider": "parquet", "options": {}},
                "schemaString": from_arrow_schema(snapshot.schema).json(),
                "partitionColumns": list(_PARTITION_COLUMNS),
                "configuration": {_FACTS: snapshot.facts.to_json()},
            }
        },
    ]
    for number, (piece, location) in enumerate(zip(snapshot.files, snapshot.locations, strict=True)):
        values = (piece.partition, piece.base_offset, piece.timestamp_type)
        add = {
            "path": _delta_path(location),
            "partitionValues": {name: str(value) for name, value in zip(_PARTITION_COLUMNS, values, strict=True)},
            "size": piece.size,
            "modificationTime": number,
            "dataChange": True,
            "stats": json.dumps({"numRecords": piece.record_count}),
        }
        actions.append({"add": add})
    return actions


def _delta_path(location: str) -> str:
    """Convert the location of a segment to the URI in an add action."""
    scheme, separator, rest = for_spark(location).partition("://")
    return f"{scheme}://{quote(rest)}" if separator else Path(location).as_uri()


def _read(folder: LogDir) -> dict[str, Any] | None:
    """Return the actions of the Delta commit `_COMMIT` by kind, without those that add files. Return None if the folder
    has no history yet. Raises InvalidOptionError if the folder has another Delta log.
    """
    if folder.sizes([_COMMIT]) == [None]:
        if folder.exists() and any(not each.name.startswith(".") for each in folder.entries("_delta_log")):
            raise InvalidOptionError(_FOREIGN.format(redact(folder.uri)))
        return None
    content = folder.read(_COMMIT)
    try:
        actions = [json.loads(line) for line in content.splitlines() if not line.startswith(b'{"add"')]
        commit = {kind: value for action in actions for kind, value in action.items()}
        commit["metaData"]["configuration"][_FACTS]
    except (ValueError, KeyError, AttributeError):
        raise InvalidOptionError(_FOREIGN.format(redact(folder.uri))) from None
    return commit


# The two sources ---------------------------------------------------------------------------------------------------


def _past(spark: SparkSession, location: str, made: _History, max_files_per_trigger: int) -> DataFrame:
    """Return the stream of the records in the files."""
    # startingVersion reads the commit as changes: for a snapshot, Delta would sort the files in a job of 50 tasks
    options = {"startingVersion": "0", "maxFilesPerTrigger": str(max_files_per_trigger)}
    frame = spark.readStream.format("delta").options(**options).load(location)
    offset = sf.col("base_offset") + sf.col("offset_delta")
    starts = [start for _, (start, _) in sorted(made.ranges.items())]
    if any(starts):  # a log start offset may be inside a file
        frame = frame.where(offset >= sf.get(sf.array(*map(sf.lit, starts)), sf.col("partition")))
    typed = [name for name in frame.columns if name in TYPED]
    names = read_schema(made.include_headers).names + typed
    computed = {"topic": sf.lit(made.topic).alias("topic"), "offset": offset.alias("offset")}
    return frame.select(*(computed.get(name, sf.col(name)) for name in names))


def _present(spark: SparkSession, address: str, made: _History, topic: Topic, columns: Sequence[str]) -> DataFrame:
    """Return the stream of the later records. Partitions that are newer than the history are read from their start.

    The stream ends with DataLossError if the log below the history's end is no longer the one of the history.
    """
    numbers = [TopicPartition(made.topic, number) for number in range(topic.partition_count)]
    starts = {each: made.ranges[each.partition][1] if each.partition in made.ranges else EARLIEST for each in numbers}
    epochs = {each: made.epochs[each.partition] for each in numbers if each.partition in made.epochs}
    options = {
        "cluster": address,
        "subscribe": made.topic,
        "startingOffsets": json.dumps(offsets_to_dict(starts)),
        "startingLineage": StartingLineage({made.topic: topic.topic_id}, epochs).to_json(),
        "columns": ",".join(columns),
    }
    return spark.readStream.format("spark_log").options(**options).load().select(*columns)
