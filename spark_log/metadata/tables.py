"""The tables of the metadata store: every small mutable fact of a cluster.

Times are milliseconds; offsets are half-open ranges [base_offset, end_offset). Each table's and column's meaning stands
in its comment, which PostgreSQL keeps too. `migrations/` brings a store from one revision to the next.

Lock order, in every transaction: lease, broker, log dir, topic, producer or transaction, group, partition (sorted by
topic and number), replica.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

SCHEMA_REVISION = "v1"
"""Alembic revision that this code reads and writes: the head of `migrations/versions`."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite hands out row ids only to columns declared INTEGER; AUTOINCREMENT keeps it from using one twice.
_Serial: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")


def _column(name: str, type_: Any, comment: str, *args: Any, **kwargs: Any) -> Column[Any]:
    kwargs.setdefault("nullable", False)
    return Column(name, type_, *args, comment=comment, **kwargs)


def _topic_id(**kwargs: Any) -> Column[Any]:
    return _column("topic_id", BigInteger, "topic.topic_id", **kwargs)


def _partition(**kwargs: Any) -> Column[Any]:
    return _column("partition", Integer, "number of the partition in its topic, from 0", **kwargs)


cluster = Table(
    "cluster",
    metadata,
    _column(
        "singleton",
        Integer,
        "always 1: there is one row",
        CheckConstraint("singleton = 1", name="one_row"),
        primary_key=True,
    ),
    _column("cluster_id", String(36), "name of the cluster, a UUID; every log dir carries it"),
    _column("created_ms", BigInteger, "when the cluster was made, by the store's clock"),
    _column(
        "system_identifier",
        String(32),
        "PostgreSQL's, of the server that the metadata is on; NULL: not known",
        nullable=True,
    ),
    _column(
        "timeline",
        BigInteger,
        "of that server's write-ahead log; a promotion or a restore raises it",
        nullable=True,
    ),
    _column(
        "accepted_ms",
        BigInteger,
        "store clock; when an operator accepted another server or timeline",
        nullable=True,
    ),
    _column(
        "settings",
        Text,
        "cluster settings that differ from the defaults: JSON, dotted name to text",
        server_default="{}",
    ),
    comment="The cluster that this store describes.",
)

broker = Table(
    "broker",
    metadata,
    _column("broker_id", Integer, "chosen by the operator, > 0", primary_key=True, autoincrement=False),
    _column("rack", String(249), "failure domain for placement and nearest-replica reads", nullable=True),
    _column("served", Boolean, "true: a process holds a lease; false: embedded, whoever appends does its work"),
    _column("holder", Text, "host and process of a served broker, for people", nullable=True),
    _column("epoch", BigInteger, "grows with each start of a served broker"),
    _column("lease_until_ms", BigInteger, "store clock; NULL for an embedded broker", nullable=True),
    _column("lease_era", String(64), "boot id under which lease_until_ms was written (SQLite)", nullable=True),
    comment="A failure domain that keeps replicas.",
)

log_dir = Table(
    "log_dir",
    metadata,
    _column("log_dir_id", _Serial, "key", primary_key=True, autoincrement=True),
    _column("broker_id", Integer, "owner", ForeignKey("broker.broker_id")),
    _column(
        "uri",
        Text,
        "URI that pyarrow.fs opens; without a scheme, relative to the embedded cluster's folder",
        unique=True,
    ),
    _column("uuid", String(36), "must equal the id in the log dir's own marker file"),
    _column("counter", BigInteger, "must equal the marker's; a restored snapshot has a lower one"),
    _column("online", Boolean, "false once the controller has declared it failed"),
    _column("failure", Text, "why it is not online, for people", nullable=True),
    _column(
        "suspect_bytes",
        BigInteger,
        "somebody could not write a file of so many bytes here: the controller is to look; NULL: nobody complained",
        nullable=True,
    ),
    comment="A folder or bucket of a broker.",
    sqlite_autoincrement=True,
)

lease = Table(
    "lease",
    metadata,
    _column("name", String(32), "controller or coordinator", primary_key=True),
    _column("holder", Text, "who holds it: host, process, random", nullable=True),
    _column(
        "epoch", BigInteger, "term; grows with each change of holder and is checked in every transaction of the holder"
    ),
    _column("until_ms", BigInteger, "store clock"),
    _column("era", String(64), "boot id under which until_ms was written (SQLite)"),
    comment="Exactly-one-acts leases with fencing epochs.",
)

topic = Table(
    "topic",
    metadata,
    _column("topic_id", _Serial, "key, never reused", primary_key=True, autoincrement=True),
    _column("uuid", String(32), "Kafka's topic id, 32 hex digits; its first 8 are in the folder's name", unique=True),
    _column("name", String(249), "as in Kafka: [a-zA-Z0-9._-]{1,249}", unique=True),
    _column("collision_key", String(249), "name with . replaced by _: two topics may not share it", unique=True),
    _column("partition_count", Integer, "partitions are numbered from 0 to partition_count - 1"),
    _column("replication_factor", Integer, "replicas of each partition"),
    _column("configs", Text, "JSON object of the configs that differ from the defaults; values are strings"),
    _column("created_ms", BigInteger, "store clock"),
    comment="A topic.",
    sqlite_autoincrement=True,
)

partition = Table(
    "partition",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("leader", Integer, "broker id; NULL while offline", nullable=True),
    _column("leader_epoch", BigInteger, "grows with each election"),
    _column("partition_epoch", BigInteger, "grows with each change of leader, ISR or assignment, and each cut"),
    _column("log_start_offset", BigInteger, "first offset that may be read"),
    _column("log_end_offset", BigInteger, "LEO of the leader: the next offset to assign"),
    _column("high_watermark", BigInteger, "min LEO over the ISR; readers stop below it"),
    _column("recovery_point", BigInteger, "every offset below it has been forced to disk (flush.messages)"),
    _column("tail_bytes", BigInteger, "bytes of the blobs of this partition that are not sealed yet"),
    _column("change", BigInteger, "grows when the set of sealed segments below the high watermark changes"),
    comment="log_start_offset <= high_watermark <= log_end_offset. Its row lock orders everything in the partition.",
)

replica = Table(
    "replica",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("broker_id", Integer, "where the replica lives", primary_key=True),
    _column("log_dir_id", BigInteger, "in which of the broker's log dirs"),
    _column("log_end_offset", BigInteger, "every segment below it is whole in this log dir; always a segment boundary"),
    _column("in_sync", Boolean, "member of the ISR"),
    _column("preference", Integer, "order in AR; 0 is the preferred leader"),
    Index(None, "log_dir_id"),
    comment="A replica of a partition. AR = all rows, ISR = those in_sync.",
)

segment = Table(
    "segment",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column(
        "base_offset",
        BigInteger,
        "offset of the first record as appended; offset = base_offset + offset_delta",
        primary_key=True,
    ),
    _column("end_offset", BigInteger, "one more than the last offset covered; equals the next segment's base_offset"),
    _column("record_count", Integer, "records held; less than end_offset - base_offset only after compaction"),
    _column("bytes", BigInteger, "size of the file or blob"),
    _column("min_timestamp_ms", BigInteger, "smallest record timestamp"),
    _column("max_timestamp_ms", BigInteger, "largest record timestamp"),
    _column("timestamp_type", Integer, "0 CreateTime, 1 LogAppendTime: a fact of the whole segment"),
    _column("leader_epoch", BigInteger, "of the append"),
    _column("producer_id", BigInteger, "idempotent producer, if any", nullable=True),
    _column("producer_epoch", BigInteger, "its epoch", nullable=True),
    _column("first_sequence", BigInteger, "sequence of the first record", nullable=True),
    _column("codec", String(16), "compression.type of the file"),
    _column("checksum", String(32), "XXH3-128 of the file's or blob's bytes, hex"),
    _column("name", String(96), "unique for ever: <write id>-<n>.parquet, or the blob's id"),
    _column("inline", Boolean, "true: the bytes are in table blob; false: a file in every replica's log dir"),
    _column("change", BigInteger, "partition.change when the row came, so that publication finds what is new"),
    _column(
        "rewritten",
        Boolean,
        "rows were published before under another file (merge, compaction): no data change in Delta",
        server_default=false(),
    ),
    _column(
        "appended_ms",
        BigInteger,
        "store clock; of a rewritten segment, that of the latest append in it: how old it is, whatever its timestamps",
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
    comment="A run of records: Kafka's segment with its offset index (primary key) and time index.",
)

blob = Table(
    "blob",
    metadata,
    _column("name", String(96), "segment.name", primary_key=True),
    _column("data", LargeBinary, "Arrow IPC stream"),
    comment="Bytes of the inline tail. A blob counts as present on every replica.",
)

write_id = Table(
    "write_id",
    metadata,
    _column("write_id", String(32), "prefix of the names of the files that its holder writes", primary_key=True),
    _column("holder", Text, "for people: what writes under it"),
    _column(
        "until_ms",
        BigInteger,
        "store clock; past it, clean-up may delete the row, and then the files that no segment names",
    ),
    _column("era", String(64), "boot id under which until_ms was written (SQLite)"),
    comment="The right to create files. An append under an id without a row fails: clean-up and append cannot cross.",
)

retired_file = Table(
    "retired_file",
    metadata,
    _column("path", Text, "relative to the log dirs: a segment file, or a deleted topic's folder", primary_key=True),
    _column("topic_id", BigInteger, "topic.topic_id, also of a topic that is gone", server_default=text("0")),
    _column(
        "partition", Integer, "number of the partition in its topic; NULL: the path is a topic's folder", nullable=True
    ),
    _column(
        "change",
        BigInteger,
        "partition.change when the file went, so that publication finds what is gone",
        server_default=text("0"),
    ),
    _column("retired_ms", BigInteger, "store clock; deleted retired.file.retention.ms later"),
    Index(None, "topic_id", "partition", "change"),
    Index(None, "retired_ms"),
    comment="Files that metadata no longer names but readers may still be on.",
)

retired_replica = Table(
    "retired_replica",
    metadata,
    _column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("folder", Text, "the topic's folder in the log dir"),
    _column("retired_ms", BigInteger, "store clock; its files are deleted retired.file.retention.ms later"),
    _column("deleting", Boolean, "its files are being deleted: no replica may be placed here meanwhile"),
    comment="What a reassignment left behind in a log dir: readers may still be on its files.",
)

retired_copy = Table(
    "retired_copy",
    metadata,
    _topic_id(primary_key=True),
    _column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _column("path", Text, "retired_file.path: was deleted everywhere else", primary_key=True),
    comment="Retired files in log dirs that were away when they were deleted: to be deleted there.",
)

compaction = Table(
    "compaction",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column(
        "end_offset",
        BigInteger,
        "every record below it that a later one below it had overwritten was gone by then",
        primary_key=True,
    ),
    _column("at_ms", BigInteger, "store clock; a tombstone below end_offset may go delete.retention.ms later"),
    _column("tombstone_count", BigInteger, "tombstones that it left below end_offset"),
    comment="Compactions that were completed. The largest end_offset is where the dirty part of the log begins.",
)

truncation = Table(
    "truncation",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("leader_epoch", BigInteger, "that the election began", primary_key=True),
    _column("start_offset", BigInteger, "the new leader's LEO: what was at or above it is gone"),
    _column("end_offset", BigInteger, "LEO before"),
    _column("high_watermark", BigInteger, "before; above start_offset, readers had seen what is gone"),
    _column("record_count", BigInteger, "records lost"),
    _column("unclean", Boolean, "the new leader was not in the ISR"),
    _column("at_ms", BigInteger, "store clock"),
    comment="What elections have cut off.",
)

publication = Table(
    "publication",
    metadata,
    _topic_id(primary_key=True),
    _column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _column(
        "transaction_version", BigInteger, "version of our app transaction in the Delta table's last commit of ours"
    ),
    _column("delta_version", BigInteger, "Delta version of that commit; a higher one in the table is a foreign commit"),
    comment="How far a log dir's Delta table of a topic is known to equal the metadata.",
)

publication_cursor = Table(
    "publication_cursor",
    metadata,
    _topic_id(primary_key=True),
    _column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _partition(primary_key=True),
    _column("change", BigInteger, "partition.change that has been published"),
    _column("high_watermark", BigInteger, "partition.high_watermark at that time: what lay above it came later"),
    _column(
        "seen_offset",
        BigInteger,
        "every record below it has been in the table as a file's: when it comes again, that is no data change",
        server_default=text("0"),
    ),
    comment="Per partition, how far the Delta table has followed.",
)

publication_intent = Table(
    "publication_intent",
    metadata,
    _topic_id(primary_key=True),
    _column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _column(
        "transaction_version", BigInteger, "the table has this version of our app transaction: done", primary_key=True
    ),
    _column("delta_version", BigInteger, "Delta version that the commit will have"),
    _column("recorded_delta_version", BigInteger, "publication.delta_version when this was noted", nullable=True),
    _column("has_replicas", Boolean, "whether the log dir had a replica of the topic"),
    comment="Commits of a Delta table that are about to be made, or were made and have not been recorded.",
)

publication_intent_cursor = Table(
    "publication_intent_cursor",
    metadata,
    _topic_id(primary_key=True),
    _column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _column("transaction_version", BigInteger, "publication_intent.transaction_version", primary_key=True),
    _partition(primary_key=True),
    _column("change", BigInteger, "publication_cursor.change once the commit is recorded"),
    _column("high_watermark", BigInteger, "publication_cursor.high_watermark then"),
    _column("seen_offset", BigInteger, "publication_cursor.seen_offset then"),
    comment="Per partition, how far the Delta table will have followed after such a commit.",
)

producer = Table(
    "producer",
    metadata,
    _column("producer_id", _Serial, "Kafka's PID, never reused", primary_key=True, autoincrement=True),
    _column("transactional_id", String(249), "stable name chosen by the application", unique=True, nullable=True),
    _column("epoch", BigInteger, "a lower one is fenced"),
    _column("last_used_ms", BigInteger, "store clock, for expiry"),
    _column("transaction_timeout_ms", BigInteger, "0 when not transactional"),
    comment="Idempotent and transactional producers.",
    sqlite_autoincrement=True,
)

producer_batch = Table(
    "producer_batch",
    metadata,
    _column("producer_id", BigInteger, "producer.producer_id", primary_key=True),
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("producer_epoch", BigInteger, "epoch of the append"),
    _column("first_sequence", BigInteger, "sequence of the batch's first record", primary_key=True),
    _column("last_sequence", BigInteger, "sequence of its last record"),
    _column("base_offset", BigInteger, "offset of its first record, returned again for a duplicate"),
    _column("end_offset", BigInteger, "one more than the offset of its last record"),
    _column("appended_ms", BigInteger, "store clock, for expiry"),
    Index(None, "topic_id", "partition", "base_offset"),
    comment="The last five batches of each producer in each partition, as in Kafka: what makes a retry safe.",
)

transaction = Table(
    "transaction",
    metadata,
    _column("producer_id", BigInteger, "producer.producer_id", primary_key=True),
    _column("producer_epoch", BigInteger, "epoch that began it"),
    _column(
        "number", BigInteger, "counts the transactions of this producer, so that a late commit cannot touch a newer one"
    ),
    _column("state", String(16), "Empty, Ongoing, CompleteCommit or CompleteAbort"),
    _column("began_ms", BigInteger, "store clock"),
    _column("until_ms", BigInteger, "store clock; past it the coordinator aborts"),
    _column("era", String(64), "boot id under which until_ms was written (SQLite)"),
    comment="The current or last transaction of a producer.",
)

transaction_segment = Table(
    "transaction_segment",
    metadata,
    _column("producer_id", BigInteger, "transaction.producer_id", primary_key=True),
    _column("position", BigInteger, "order of the sends", primary_key=True),
    _topic_id(),
    _partition(),
    _column("facts", Text, "JSON of the batch as the append will need it"),
    _column("name", String(96), "segment.name to be", unique=True),
    _column("inline", Boolean, "segment.inline to be"),
    comment="Batches of an open transaction: no offset, seen by nobody.",
)

consumer_group = Table(
    "consumer_group",
    metadata,
    _column("group_id", String(249), "name of the group", primary_key=True),
    _column("generation", BigInteger, "grows with each change of members, subscriptions or their topics' partitions"),
    _column(
        "target_generation",
        BigInteger,
        "generation that the members' targets were computed for; below generation they are stale",
        server_default=text("0"),
    ),
    _column("assignor", Text, "name of the assignor that computed the targets"),
    _column(
        "topics",
        Text,
        "JSON: name -> [topic_id, partition count] of the subscribed topics, as the targets assume them",
        server_default=text("'{}'"),
    ),
    _column("empty_since_ms", BigInteger, "store clock; NULL while it has members", nullable=True),
    comment="A consumer group.",
)

group_member = Table(
    "group_member",
    metadata,
    _column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    _column("member_id", String(249), "made by the member, unique", primary_key=True),
    _column("instance_id", String(249), "group.instance.id of a static member", nullable=True),
    _column("client", Text, "client id and host, for describe"),
    _column("subscription", Text, "JSON: topics, and the assignors in order of preference with their user data"),
    _column("target", Text, "JSON: partitions that the assignor gave it"),
    _column("generation", BigInteger, "consumer_group.target_generation that it was told last; commits carry it"),
    _column("beat", BigInteger, "number of its last heartbeat that was written; a lower one comes too late"),
    _column("session_timeout_ms", Integer, "silence that ends its membership"),
    _column("until_ms", BigInteger, "store clock; end of its session"),
    _column("era", String(64), "boot id under which until_ms was written (SQLite)"),
    comment="A member of a group.",
)

group_partition = Table(
    "group_partition",
    metadata,
    _column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    _column("topic", String(249), "topic.name: what members hold, also while the topic is away", primary_key=True),
    _partition(primary_key=True),
    _column("member_id", String(249), "group_member.member_id: was given the partition and has not let go of it"),
    Index(None, "group_id", "member_id"),
    comment="Who owns a partition in a group: the primary key allows one at most.",
)

group_offset = Table(
    "group_offset",
    metadata,
    _column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("committed_offset", BigInteger, "next offset that the group will read"),
    _column("leader_epoch", BigInteger, "of the last record read; -1 unknown"),
    _column("commit_metadata", Text, "free text of the consumer"),
    _column("committed_ms", BigInteger, "store clock, for offset retention"),
    _column("position", BigInteger, "offset of the commit in its partition of __consumer_offsets"),
    _column(
        "log_partition",
        Integer,
        "partition of __consumer_offsets; -1: committed before there was that topic",
        server_default=text("-1"),
    ),
    Index(None, "log_partition", "position"),
    comment="Committed offsets.",
)

spark_batch = Table(
    "spark_batch",
    metadata,
    _column("application", String(512), "stream:<query id>, or txn:<txnAppId>", primary_key=True),
    _column("target", String(249), "option topic of the write, or '' when the rows name it", primary_key=True),
    _column("version", BigInteger, "batch id or txnVersion of the last batch"),
    _column("record_count", BigInteger, "rows of that batch"),
    _column("fingerprint", String(16), "order-independent checksum of that batch's rows, hex"),
    _column("committed_ms", BigInteger, "store clock"),
    _column(
        "newest_topic_id",
        BigInteger,
        "highest topic.topic_id at that time: a topic with a higher one was created later and has no row of the batch",
        server_default=text("0"),
    ),
    comment="The last batch of each Spark sink: a replay changes nothing, other rows of that version are an error.",
)

mirror_position = Table(
    "mirror_position",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("source_cluster_id", String(36), "cluster.cluster_id of the cluster that is mirrored"),
    _column("source_topic_uuid", String(32), "topic.uuid there"),
    _column("leader_epoch", BigInteger, "of the partition there when the records were looked up"),
    _column("end_offset", BigInteger, "log end offset here after the last step"),
    _column("target_leader_epoch", BigInteger, "of the partition here before that step"),
    comment="Where a mirror into this cluster has got to, and in which log of its source.",
)

reassignment = Table(
    "reassignment",
    metadata,
    _topic_id(primary_key=True),
    _partition(primary_key=True),
    _column("target", Text, "JSON list of broker ids: AR to be"),
    _column("original", Text, "JSON list of broker ids: AR before, for cancel"),
    _column("throttle_bytes_per_s", BigInteger, "copy rate; NULL unlimited", nullable=True),
    _column("began_ms", BigInteger, "store clock"),
    comment="Ongoing partition reassignments.",
)

commit_token = Table(
    "commit_token",
    metadata,
    _column("token", String(32), "UUID in hex, used by one transaction", primary_key=True),
    _column(
        "committed",
        Boolean,
        "true: the transaction's own row; false: it was asked about, and can not be committed any more",
    ),
    _column("at_ms", BigInteger, "store clock"),
    comment="The last transactions of each connection to PostgreSQL, and those whose answer was lost.",
)
