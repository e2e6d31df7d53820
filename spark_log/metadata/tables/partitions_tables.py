"""Tables of partitions: their offsets, replicas, truncations, compactions, and files to be deleted."""

from sqlalchemy import BigInteger, Boolean, Index, Integer, Text, false, text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("log/partitions")

partition = _table(
    "partition",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("leader", Integer, "broker id; NULL while offline", nullable=True),
    column("leader_epoch", BigInteger, "grows with each election"),
    column("partition_epoch", BigInteger, "grows with each change of leader, ISR or assignment, and each truncation"),
    column("log_start_offset", BigInteger, "first offset that may be read"),
    column("log_end_offset", BigInteger, "LEO of the leader: the next offset to assign"),
    column("high_watermark", BigInteger, "min LEO over the ISR; readers stop below it"),
    column("recovery_point", BigInteger, "every offset below it has been forced to disk (flush.messages)"),
    column("tail_bytes", BigInteger, "bytes of the blobs of this partition that are not sealed yet"),
    column("change", BigInteger, "grows when the set of sealed segments below the high watermark changes"),
    column(
        "rewrites",
        BigInteger,
        "grows when segments are replaced by a file: what a reader has kept of them may be records that were erased",
        server_default=text("0"),
    ),
    column("frozen", Boolean, "true: its topic is being moved to another store", server_default=false()),
    Index("ix_partition_frozen", "topic_id", sqlite_where=text("frozen = 1"), postgresql_where=text("frozen")),
    deleted_with=("topic",),
    comment="log_start_offset <= high_watermark <= log_end_offset. Its row lock orders everything in the partition.",
)

replica = _table(
    "replica",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("broker_id", Integer, "where the replica lives", primary_key=True),
    column("log_dir_id", BigInteger, "in which of the broker's log dirs"),
    column(
        "log_end_offset", BigInteger, "every segment below it is complete in this log dir; always a segment boundary"
    ),
    column("in_sync", Boolean, "member of the ISR"),
    column("preference", Integer, "order in AR; 0 is the preferred leader"),
    Index(None, "log_dir_id"),
    deleted_with=("topic",),
    comment="A replica of a partition. AR = all rows, ISR = those in_sync.",
)

truncation = _table(
    "truncation",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("leader_epoch", BigInteger, "the epoch that the election began", primary_key=True),
    column("start_offset", BigInteger, "the new leader's LEO: records at or above it were removed"),
    column("end_offset", BigInteger, "LEO before the election"),
    column(
        "high_watermark", BigInteger, "before the election; if above start_offset, readers had seen removed records"
    ),
    column("record_count", BigInteger, "records lost"),
    column("unclean", Boolean, "the new leader was not in the ISR"),
    column("at_ms", BigInteger, "store clock"),
    deleted_with=("topic",),
    comment="Truncations: the records that elections removed from the end of partitions.",
)

compaction = _table(
    "compaction",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column(
        "end_offset",
        BigInteger,
        "below it, no record remained that a later one below it overwrites",
        primary_key=True,
    ),
    column("at_ms", BigInteger, "store clock; a tombstone below end_offset may be removed delete.retention.ms later"),
    column("tombstone_count", BigInteger, "tombstones left below end_offset"),
    deleted_with=("topic",),
    comment="Completed compactions. The dirty part of the log begins at the largest end_offset.",
)

retired_file = _table(
    "retired_file",
    column("path", Text, "relative to the log dirs: a segment file, or a deleted topic's folder", primary_key=True),
    column("topic_id", BigInteger, "topic.topic_id, also of a deleted topic", server_default=text("0")),
    column(
        "partition", Integer, "number of the partition in its topic; NULL: the path is a topic's folder", nullable=True
    ),
    column(
        "change",
        BigInteger,
        "partition.change when the file was retired, so that publication finds removed files",
        server_default=text("0"),
    ),
    column("retired_ms", BigInteger, "store clock; deleted retired.file.retention.ms later"),
    column(
        "fresh",
        Boolean,
        "replaced soon after its records were appended: deleted file.delete.delay.fresh.ms later",
        server_default=false(),
    ),
    Index(None, "topic_id", "partition", "change"),
    Index(None, "retired_ms"),
    comment="Files that the metadata no longer refers to, and that readers may still use.",
)

retired_replica = _table(
    "retired_replica",
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("folder", Text, "the topic's folder in the log dir"),
    column("retired_ms", BigInteger, "store clock; its files are deleted retired.file.retention.ms later"),
    column("deleting", Boolean, "its files are being deleted: no replica may be placed here until that is done"),
    deleted_with=("topic", "log_dir"),
    comment="Replicas that a reassignment removed from a log dir. Readers may still use their files.",
)

retired_copy = _table(
    "retired_copy",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    column("path", Text, "retired_file.path, already deleted in all other log dirs", primary_key=True),
    deleted_with=("topic", "log_dir"),
    comment="Retired files still to be deleted in log dirs that were offline when the others were cleaned.",
)
