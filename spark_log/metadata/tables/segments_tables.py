"""Tables of segments: the records of each partition."""

from sqlalchemy import BigInteger, Boolean, Index, Integer, LargeBinary, String, Text, false, text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("log/segments")

segment = _table(
    "segment",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column(
        "base_offset",
        BigInteger,
        "offset of the first record as appended; offset = base_offset + offset_delta",
        primary_key=True,
    ),
    column("end_offset", BigInteger, "one more than the last offset covered; equals the next segment's base_offset"),
    column("record_count", Integer, "records held; less than end_offset - base_offset only after compaction"),
    column("bytes", BigInteger, "size of the file or blob"),
    column("min_timestamp_ms", BigInteger, "smallest record timestamp"),
    column("max_timestamp_ms", BigInteger, "largest record timestamp"),
    column("timestamp_type", Integer, "0 CreateTime, 1 LogAppendTime, for the whole segment"),
    column("leader_epoch", BigInteger, "of the append"),
    column("producer_id", BigInteger, "idempotent producer, if any", nullable=True),
    column("producer_epoch", BigInteger, "its epoch", nullable=True),
    column("first_sequence", BigInteger, "sequence of the first record", nullable=True),
    column("codec", String(16), "compression.type of the file"),
    column("checksum", String(32), "XXH3-128 of the file's or blob's bytes, hex"),
    column(
        "columns_version",
        Integer,
        "version of topic.typed_columns with which the typed columns in the file were decoded; NULL: it has none",
        nullable=True,
    ),
    column(
        "stats",
        Text,
        "JSON: bounds and null counts of the typed columns in the file, as in stats of Delta's add action",
        nullable=True,
    ),
    column("name", String(96), "unique for ever: <write id>-<n>.parquet, or the blob's id"),
    column("inline", Boolean, "true: the bytes are in table blob; false: a file in every replica's log dir"),
    column("change", BigInteger, "partition.change when the row was inserted, so that publication finds new segments"),
    column(
        "rewritten",
        Boolean,
        "its rows were published before in other files (merge, compaction): no data change in Delta",
        server_default=false(),
    ),
    column(
        "appended_ms",
        BigInteger,
        "store clock; for a rewritten segment, the latest append in it: the age of the data, independent of timestamps",
        server_default=text("0"),
    ),
    Index(None, "topic_id", "partition", "max_timestamp_ms", "base_offset"),
    Index(None, "topic_id", "partition", "change"),
    Index(
        "ix_segment_inline",
        "topic_id",
        "partition",
        "base_offset",
        sqlite_where=text("inline = 1"),
        postgresql_where=text("inline"),
    ),
    deleted_with=("topic",),
    comment="A run of records: Kafka's segment with its offset index (primary key) and time index.",
)

blob = _table(
    "blob",
    column("name", String(96), "segment.name", primary_key=True),
    column("data", LargeBinary, "Arrow IPC stream"),
    comment="Bytes of the inline tail. A blob counts as present on every replica.",
)
