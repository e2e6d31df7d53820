"""`Table` joins a stream with a compacted topic that is current in every micro-batch, like a KStream-KTable join.

Spark reads the static side of a streaming join only once. Therefore the join runs in foreachBatch, with the table at
offsets that are fixed for the batch. Two frames are cached between batches: the last value of each key at a *base*
version, partitioned and sorted for joins, and the rows that changed since. Both depend only on offsets and the log, so
a lost executor only costs time. A batch reads the new records of the topic; the base is read again only after many
changes or after compaction, and before the files from which it was read may be deleted.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType
from pyspark.sql.utils import is_remote

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import ClassicSessionRequiredError, InvalidOptionError
from spark_log.failpoints import failpoint
from spark_log.ids import OffsetRange
from spark_log.maintenance.client_log import TaskReader
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS
from spark_log.spark.datasource.read.read_topic import read_plan
from spark_log.spark.streams.compacted_tables import check_compacted, last_in_partitions
from spark_log.spark.streams.formats.codecs import ERROR, RAW, Codec, decode
from spark_log.spark.streams.formats.parsing import column_named
from spark_log.spark.streams.micro_batch import MicroBatch, Notes, current_batch
from spark_log.spark.streams.table_version import TableVersion, plan_at, read_version

logger = logging.getLogger(__name__)

_CHANGED_MAX = 100_000
"""Changed records of up to this number of offsets are kept apart from the base, and broadcast to a join's tasks."""
_KEY, _BASE, _CHANGED = "_table_key", "_base_", "_changed_"
_RECORDS_PER_TASK = 250_000
JOIN_KINDS = ("inner", "left")

OTHERS = "others"
"""Column with the key's last records in other partitions. It is usually null: a key is in one partition."""


@dataclass(frozen=True)
class _State:
    """The table at `version`: `base` has the rows at `base_version`, and `changed` those of the records appended since.

    The columns are _table_key, and the others of `newest_rows` with the prefix _base_ or _changed_. A null value means
    that the key is deleted.
    """

    version: TableVersion
    base_version: TableVersion
    base: DataFrame
    changed: DataFrame | None
    kept_until_s: float
    """The time until which the files of both frames exist, even if they are merged: then an executor that loses its
    part of the frames can read it again.
    """


class Table:
    """A compacted topic, for joins with streams. Driver.

    >>> planes = Table(spark, address, "planes", value=Json("seats INT"))                # doctest: +SKIP
    >>> def route(batch):
    ...     return [(planes.join(batch, on="tailnum"), TopicOutput(address, "enriched"))]
    >>> write_stream(flights, route, checkpoint=folder)                                  # doctest: +SKIP

    Guarantee: all rows of a micro-batch, in all outputs, are joined with one version of the table. It has at least the
    changes that could be read when the batch began. So a record that was appended after a change was acknowledged is
    joined with this change or a later one. A batch that is replayed after a crash uses the same version again, because
    the version is stored in the checkpoint before it is used. If records of this version have been compacted, erased,
    expired, or truncated by an unclean leader election since, the batch uses the current version and logs a warning.
    Another warning is logged when records that the table showed before were lost. If a key is in several partitions,
    its row is, as in `read_table`, that of the partitions' last records with the largest timestamp.

    With a codec (`value`), each value is decoded once, when it is read. A bad value counts as deleted.

    Use one Table per query: two queries would alternate between their versions and read the base each time.
    Raises ClusterNotFoundError, UnknownTopicOrPartitionError, PolicyViolationError (the topic is not compacted), and
    ClassicSessionRequiredError over Spark Connect, whose foreachBatch runs in another process than this object.
    """

    def __init__(self, spark: SparkSession, cluster: str, topic: str, *, value: Codec | None = None) -> None:
        if is_remote():
            raise ClassicSessionRequiredError(f"Table({topic!r}): a live table does not work over Spark Connect")
        self.topic = topic
        self._codec = value
        self._spark = spark
        self._cluster = Cluster.open(cluster)
        self._cluster.store.read_timeout_ms = DEFAULT_TIMEOUT_MS  # a failover ends no query
        self._log = TaskReader(self._cluster, holder=f"table {topic}")
        self._lock = Lock()
        self._state: _State | None = None
        self._batch: MicroBatch | None = None
        try:
            check_compacted(self._log.find_topic(topic))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: "type[BaseException] | BaseException | TracebackType | None") -> None:
        self.close()

    def close(self) -> None:
        """Close the cluster and free the cached rows."""
        with self._lock:
            if self._state is not None and self._spark.sparkContext._jsc is not None:  # None: Spark has stopped
                self._forget(self._state.base, self._state.changed)
            self._state = None
            self._log.close()
            self._cluster.close()

    def join(self, batch: DataFrame, on: "str | Column", *, how: str = "left", name: str | None = None) -> DataFrame:
        """Return `batch` with one more column: the table's row with the key `on` as a struct, or null without a row.

        `on` is the name of a column of bytes or text, or such a Column. The struct has the fields of the table's codec.
        Without a codec it has value (binary), partition, offset and timestamp. The column is called `name`, by default
        like the topic. With how="inner", rows without a match are left out. A null `on` matches nothing. Inside
        foreachBatch the table has the micro-batch's version, elsewhere the current one. Raises InvalidOptionError.
        """
        if batch.isStreaming:
            raise InvalidOptionError(
                f"table {self.topic!r}: a streaming frame is joined batch by batch: call join in the function that is"
                " given to write_stream or foreachBatch"
            )
        if how not in JOIN_KINDS:
            raise InvalidOptionError(f"how {how!r}: expected {' or '.join(JOIN_KINDS)}")
        name = name or self.topic
        if name.lower() in (column.lower() for column in batch.columns):
            raise InvalidOptionError(f"name {name!r}: the batch has a column of this name: choose another one")
        keyed = batch.withColumn(_KEY, self._key(batch, on))
        state = self._as_of_batch(batch.sparkSession)
        matched = keyed.join(state.base, _KEY, how if state.changed is None else "left")
        if state.changed is not None:
            matched = matched.join(sf.broadcast(state.changed), _KEY, "left")
        row = _row(state)
        row = sf.when(row["value"].isNotNull(), row) if self._codec is None else row["value"]
        joined = matched.select(*(column_named(column) for column in batch.columns), row.alias(name))
        return joined.where(column_named(name).isNotNull()) if how == "inner" else joined

    def rows(self) -> DataFrame:
        """Return the rows at the version that `join` uses, with the columns of `read_table` and decoded values."""
        state = self._as_of_batch(self._spark)
        rows = state.base
        if state.changed is not None:
            rows = state.changed.join(state.base, _KEY, "left")
            unchanged = state.base.join(state.changed, _KEY, "left_anti")
            rows = rows.unionByName(unchanged, allowMissingColumns=True)
        rows = rows.select(sf.col(_KEY).alias("key"), _row(state).alias("row"))
        return rows.select("key", "row.*").where("value IS NOT NULL")

    def _key(self, batch: DataFrame, on: "str | Column") -> Column:
        if isinstance(on, str) and on not in batch.columns:
            raise InvalidOptionError(f"on {on!r}: no such column: there are {', '.join(batch.columns)}")
        column = column_named(on) if isinstance(on, str) else on
        kind = batch.select(column.alias("it")).schema["it"].dataType
        if not isinstance(kind, StringType | BinaryType):
            raise InvalidOptionError(
                f"on {on!r} is {kind.simpleString()}, expected text or bytes: cast it as the table's keys were written"
            )
        return column.cast(BinaryType())

    def _as_of_batch(self, session: SparkSession) -> _State:
        with self._lock:
            batch = current_batch(session)
            if batch is not None and batch == self._batch and self._state is not None:
                return self._state  # a second join in the same batch
            notes = None if batch is None else Notes(session, batch, self._cluster.cluster_id, self.topic)
            version = self._version(notes)
            while (state := self._state_at(version)) is None:
                version = self._version(notes)
            self._state, self._batch = state, batch
            return state

    def _version(self, notes: Notes | None) -> TableVersion:
        """Return the version that an earlier run of the batch stored in the checkpoint, if its records still exist.
        Otherwise return the current version, and store it.
        """
        noted = None if notes is None else notes.read()
        if noted is not None:
            version = TableVersion.from_text(noted)
            if read_version(self._log, self.topic, version) == version:
                return version
            logger.warning(
                "table %s: records of the version that this batch used before have been compacted, erased, truncated"
                " or expired: it uses the current version",
                self.topic,
            )
        version = read_version(self._log, self.topic)
        if self._state is not None and version.diverges_from(self._state.version):
            logger.warning(
                "table %s: an unclean leader election truncated records of the table, or the topic was deleted and"
                " created again: the whole table is read again",
                self.topic,
            )
        if notes is not None:
            notes.write(version.as_text())
            failpoint("stream.table-noted")
        return version

    def _state_at(self, version: TableVersion) -> _State | None:
        """Return the state at `version`, or None if some of its records were removed from the log before they were
        read.
        """
        state, now_s = self._state, clock.monotonic_s()
        is_kept = state is not None and now_s < state.kept_until_s
        if state is not None and is_kept and state.version == version:
            return state
        new = version.since(state.base_version) if state is not None and is_kept else None
        if state is not None and new is not None and sum(offsets.size for offsets in new.values()) <= _CHANGED_MAX:
            changed = self._read(version, new, 1) if new else None
            if new and changed is None:
                return None
            changed = None if changed is None else _prefixed(changed, _CHANGED).persist()
            after = _State(version, state.base_version, state.base, changed, state.kept_until_s)
            before = [state.changed]
        else:
            whole = {number: OffsetRange(each.start, each.end) for number, each in version.partitions.items()}
            tasks = min(-(-version.records // _RECORDS_PER_TASK), self._shuffle_partitions()) or 1
            rows = self._read(version, whole, tasks)
            if rows is None:
                return None
            base = _prefixed(rows.sortWithinPartitions("key"), _BASE).persist()
            base.count()  # fills the cache: Spark plans joins by its size, and does not shuffle and sort it again
            config = self._log.find_topic(self.topic).config
            kept_ms = min(config.file_delete_delay_ms, config.file_delete_delay_fresh_ms)
            after = _State(version, version, base, None, now_s + kept_ms / 1000 / 2)
            before = [] if state is None else [state.base, state.changed]
        self._forget(*before)
        return after

    def _read(self, version: TableVersion, ranges: "dict[int, OffsetRange]", tasks: int) -> DataFrame | None:
        """Return `newest_rows` of the ranges, or None if records of the version no longer exist.

        The plan's segments may extend beyond the ranges.
        """
        plan = plan_at(self._log, self.topic, version, ranges)
        if plan is None:
            return None
        records = read_plan(self._spark, self.topic, plan)
        ends = sf.array(*(sf.lit(version.partitions[number].end) for number in sorted(version.partitions)))
        records = records.where(sf.col("offset") < sf.get(ends, sf.col("partition")))
        last = last_in_partitions(records.repartition(tasks, "key"))
        return newest_rows(last if self._codec is None else decode(last, self._codec).drop(RAW, ERROR))

    def _shuffle_partitions(self) -> int:
        return int(str(self._spark.conf.get("spark.sql.shuffle.partitions")))

    def _forget(self, *frames: DataFrame | None) -> None:
        for frame in frames:
            if frame is not None:
                frame.unpersist()


def _prefixed(rows: DataFrame, prefix: str) -> DataFrame:
    return rows.select(*(sf.col(name).alias(_KEY if name == "key" else prefix + name) for name in rows.columns))


def _row(state: _State) -> Column:
    """Return the row of a key as a struct. Its value is null if the key is deleted or missing."""
    names = [name.removeprefix(_BASE) for name in state.base.columns]
    fields = [name for name in names if name not in (_KEY, OTHERS)]
    if state.changed is not None:
        return changed_row(fields, _BASE, _CHANGED)
    return sf.struct(*(sf.col(_BASE + name).alias(name) for name in fields))


# The row of each key follows the rule of `last_values`: it is the last record of the key's partition. If partitions
# were added to the topic and a key has records in several, it is the one with the largest timestamp among their last
# records. A later record only replaces the record of its own partition. Therefore the rows keep the last records of the
# other partitions, and deletions: all expressions depend on the log alone.


def newest_rows(in_partitions: DataFrame) -> DataFrame:
    """Return one row for each key, with column `others`, from each key's last record in each partition."""
    record = sf.struct(*(name for name in in_partitions.columns if name != "key"))
    newest = in_partitions.groupBy("key").agg(
        sf.max_by(record, sf.struct("timestamp", "partition")).alias("newest"), sf.collect_list(record).alias("all")
    )
    others = sf.filter("all", lambda each: each["partition"] != sf.col("newest.partition"))
    return newest.select("key", "newest.*", sf.when(sf.size("all") > 1, others).alias(OTHERS))


def changed_row(fields: Sequence[str], base: str, changed: str) -> Column:
    """Return the current record of a key as a struct of `fields`, from its row in the base and its row in the changed
    records. A missing row has nulls. `base` and `changed` are the prefixes of the columns of these rows.
    """

    def is_replaced(partition: Column) -> Column:
        among_others = sf.exists(f"{changed}{OTHERS}", lambda each: each["partition"] == partition)
        return (partition == sf.col(f"{changed}partition")) | sf.coalesce(among_others, sf.lit(False))

    old, new = (sf.struct(*(sf.col(prefix + name).alias(name) for name in fields)) for prefix in (base, changed))
    others = sf.filter(f"{base}{OTHERS}", lambda each: ~is_replaced(each["partition"]))
    latest = sf.array_max(sf.transform(others, _order))
    other = sf.get(sf.filter(others, lambda each: _order(each) == latest), sf.lit(0))
    kept = sf.when(~is_replaced(sf.col(f"{base}partition")), old).otherwise(other)
    return (
        sf.when(sf.col(f"{changed}offset").isNull(), old)
        .when(kept.isNull() | (_order(new) > _order(kept)), new)
        .otherwise(kept)
    )


def _order(record: Column) -> Column:
    return sf.struct(record["timestamp"].alias("timestamp"), record["partition"].alias("partition"))
