"""The first revision: every table."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "blob",
        sa.Column("name", sa.String(length=96), nullable=False, comment="segment.name"),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="Arrow IPC stream"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_blob")),
        comment="Bytes of the inline tail. A blob counts as present on every replica.",
    )
    op.create_table(
        "broker",
        sa.Column(
            "broker_id", sa.Integer(), autoincrement=False, nullable=False, comment="chosen by the operator, > 0"
        ),
        sa.Column(
            "rack",
            sa.String(length=249),
            nullable=True,
            comment="failure domain for placement and nearest-replica reads",
        ),
        sa.Column(
            "served",
            sa.Boolean(),
            nullable=False,
            comment="true: a process holds a lease; false: embedded, whoever appends does its work",
        ),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="grows with each start of a served broker"),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True, comment="store clock; NULL for an embedded broker"),
        sa.Column(
            "lease_era",
            sa.String(length=64),
            nullable=True,
            comment="boot id under which lease_until_ms was written (SQLite)",
        ),
        sa.PrimaryKeyConstraint("broker_id", name=op.f("pk_broker")),
        comment="A failure domain that keeps replicas.",
    )
    op.create_table(
        "cluster",
        sa.Column("singleton", sa.Integer(), nullable=False, comment="always 1: there is one row"),
        sa.Column(
            "cluster_id",
            sa.String(length=36),
            nullable=False,
            comment="name of the cluster, a UUID; every log dir carries it",
        ),
        sa.Column(
            "created_ms", sa.BigInteger(), nullable=False, comment="when the cluster was made, by the store's clock"
        ),
        sa.PrimaryKeyConstraint("singleton", name=op.f("pk_cluster")),
        comment="The cluster that this store describes.",
    )
    op.create_table(
        "consumer_group",
        sa.Column("group_id", sa.String(length=249), nullable=False, comment="name of the group"),
        sa.Column(
            "generation", sa.BigInteger(), nullable=False, comment="grows with each change of members or subscriptions"
        ),
        sa.Column("assignor", sa.Text(), nullable=False, comment="name or class path of the assignor"),
        sa.Column(
            "commit_count",
            sa.BigInteger(),
            nullable=False,
            comment="orders the commits of the group in __consumer_offsets",
        ),
        sa.Column("empty_since_ms", sa.BigInteger(), nullable=True, comment="store clock; NULL while it has members"),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_consumer_group")),
        comment="A consumer group.",
    )
    op.create_table(
        "group_member",
        sa.Column("group_id", sa.String(length=249), nullable=False, comment="consumer_group.group_id"),
        sa.Column("member_id", sa.String(length=249), nullable=False, comment="made by the member, unique"),
        sa.Column("instance_id", sa.String(length=249), nullable=True, comment="group.instance.id of a static member"),
        sa.Column("client", sa.Text(), nullable=False, comment="client id and host, for describe"),
        sa.Column(
            "subscription", sa.Text(), nullable=False, comment="JSON: topics or pattern, and the assignor's user data"
        ),
        sa.Column("target", sa.Text(), nullable=False, comment="JSON: partitions that the assignor gave it"),
        sa.Column("current", sa.Text(), nullable=False, comment="JSON: partitions that it holds and has not given up"),
        sa.Column("generation", sa.BigInteger(), nullable=False, comment="generation of the target that it has seen"),
        sa.Column("session_timeout_ms", sa.Integer(), nullable=False, comment="silence that ends its membership"),
        sa.Column("until_ms", sa.BigInteger(), nullable=False, comment="store clock; end of its session"),
        sa.Column(
            "era", sa.String(length=64), nullable=False, comment="boot id under which until_ms was written (SQLite)"
        ),
        sa.PrimaryKeyConstraint("group_id", "member_id", name=op.f("pk_group_member")),
        comment="A member of a group.",
    )
    op.create_table(
        "group_offset",
        sa.Column("group_id", sa.String(length=249), nullable=False, comment="consumer_group.group_id"),
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("committed_offset", sa.BigInteger(), nullable=False, comment="next offset that the group will read"),
        sa.Column("leader_epoch", sa.BigInteger(), nullable=False, comment="of the last record read; -1 unknown"),
        sa.Column("commit_metadata", sa.Text(), nullable=False, comment="free text of the consumer"),
        sa.Column("committed_ms", sa.BigInteger(), nullable=False, comment="store clock, for offset retention"),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="consumer_group.commit_count at the commit"),
        sa.PrimaryKeyConstraint("group_id", "topic_id", "partition", name=op.f("pk_group_offset")),
        comment="Committed offsets.",
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(length=32), nullable=False, comment="controller or coordinator"),
        sa.Column("holder", sa.Text(), nullable=True, comment="who holds it: host, process, random"),
        sa.Column(
            "epoch",
            sa.BigInteger(),
            nullable=False,
            comment="term; grows with each change of holder and is checked in every transaction of the holder",
        ),
        sa.Column("until_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.Column(
            "era", sa.String(length=64), nullable=False, comment="boot id under which until_ms was written (SQLite)"
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
        comment="Exactly-one-acts leases with fencing epochs.",
    )
    op.create_table(
        "partition",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("leader", sa.Integer(), nullable=True, comment="broker id; NULL while offline"),
        sa.Column("leader_epoch", sa.BigInteger(), nullable=False, comment="grows with each election"),
        sa.Column(
            "partition_epoch",
            sa.BigInteger(),
            nullable=False,
            comment="grows with each change of leader, ISR or assignment, and each cut",
        ),
        sa.Column("log_start_offset", sa.BigInteger(), nullable=False, comment="first offset that may be read"),
        sa.Column(
            "log_end_offset", sa.BigInteger(), nullable=False, comment="LEO of the leader: the next offset to assign"
        ),
        sa.Column(
            "high_watermark", sa.BigInteger(), nullable=False, comment="min LEO over the ISR; readers stop below it"
        ),
        sa.Column(
            "recovery_point",
            sa.BigInteger(),
            nullable=False,
            comment="every offset below it has been forced to disk (flush.messages)",
        ),
        sa.Column(
            "tail_bytes",
            sa.BigInteger(),
            nullable=False,
            comment="bytes of the blobs of this partition that are not sealed yet",
        ),
        sa.Column(
            "change",
            sa.BigInteger(),
            nullable=False,
            comment="grows when the set of sealed segments below the high watermark changes",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_partition")),
        comment="log_start_offset <= high_watermark <= log_end_offset. Its row lock orders everything in the partition.",
    )
    op.create_table(
        "producer",
        sa.Column(
            "producer_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="Kafka's PID, never reused",
        ),
        sa.Column(
            "transactional_id", sa.String(length=249), nullable=True, comment="stable name chosen by the application"
        ),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="a lower one is fenced"),
        sa.Column("last_used_ms", sa.BigInteger(), nullable=False, comment="store clock, for expiry"),
        sa.Column("transaction_timeout_ms", sa.BigInteger(), nullable=False, comment="0 when not transactional"),
        sa.PrimaryKeyConstraint("producer_id", name=op.f("pk_producer")),
        sa.UniqueConstraint("transactional_id", name=op.f("uq_producer_transactional_id")),
        comment="Idempotent and transactional producers.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "producer_batch",
        sa.Column("producer_id", sa.BigInteger(), nullable=False, comment="producer.producer_id"),
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("producer_epoch", sa.BigInteger(), nullable=False, comment="epoch of the append"),
        sa.Column("first_sequence", sa.BigInteger(), nullable=False, comment="sequence of the batch's first record"),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False, comment="sequence of its last record"),
        sa.Column(
            "base_offset",
            sa.BigInteger(),
            nullable=False,
            comment="offset of its first record, returned again for a duplicate",
        ),
        sa.Column("end_offset", sa.BigInteger(), nullable=False, comment="one more than the offset of its last record"),
        sa.Column("appended_ms", sa.BigInteger(), nullable=False, comment="store clock, for expiry"),
        sa.PrimaryKeyConstraint(
            "producer_id", "topic_id", "partition", "first_sequence", name=op.f("pk_producer_batch")
        ),
        comment="The last five batches of each producer in each partition, as in Kafka: what makes a retry safe.",
    )
    op.create_index(
        op.f("ix_producer_batch_topic_id_partition_base_offset"),
        "producer_batch",
        ["topic_id", "partition", "base_offset"],
        unique=False,
    )
    op.create_table(
        "publication",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("log_dir_id", sa.BigInteger(), nullable=False, comment="log_dir.log_dir_id"),
        sa.Column(
            "transaction_version",
            sa.BigInteger(),
            nullable=False,
            comment="version of our app transaction in the Delta table's last commit of ours",
        ),
        sa.Column(
            "delta_version",
            sa.BigInteger(),
            nullable=False,
            comment="Delta version of that commit; a higher one in the table is a foreign commit",
        ),
        sa.PrimaryKeyConstraint("topic_id", "log_dir_id", name=op.f("pk_publication")),
        comment="How far a log dir's Delta table of a topic is known to equal the metadata.",
    )
    op.create_table(
        "publication_cursor",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("log_dir_id", sa.BigInteger(), nullable=False, comment="log_dir.log_dir_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("change", sa.BigInteger(), nullable=False, comment="partition.change that has been published"),
        sa.Column(
            "high_watermark",
            sa.BigInteger(),
            nullable=False,
            comment="partition.high_watermark at that time: what lay above it came later",
        ),
        sa.PrimaryKeyConstraint("topic_id", "log_dir_id", "partition", name=op.f("pk_publication_cursor")),
        comment="Per partition, how far the Delta table has followed.",
    )
    op.create_table(
        "reassignment",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("target", sa.Text(), nullable=False, comment="JSON list of broker ids: AR to be"),
        sa.Column("original", sa.Text(), nullable=False, comment="JSON list of broker ids: AR before, for cancel"),
        sa.Column("throttle_bytes_per_s", sa.BigInteger(), nullable=True, comment="copy rate; NULL unlimited"),
        sa.Column("began_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_reassignment")),
        comment="Ongoing partition reassignments.",
    )
    op.create_table(
        "replica",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("broker_id", sa.Integer(), nullable=False, comment="where the replica lives"),
        sa.Column("log_dir_id", sa.BigInteger(), nullable=False, comment="in which of the broker's log dirs"),
        sa.Column(
            "log_end_offset",
            sa.BigInteger(),
            nullable=False,
            comment="every segment below it is whole in this log dir; always a segment boundary",
        ),
        sa.Column("in_sync", sa.Boolean(), nullable=False, comment="member of the ISR"),
        sa.Column("preference", sa.Integer(), nullable=False, comment="order in AR; 0 is the preferred leader"),
        sa.PrimaryKeyConstraint("topic_id", "partition", "broker_id", name=op.f("pk_replica")),
        comment="A replica of a partition. AR = all rows, ISR = those in_sync.",
    )
    op.create_index(op.f("ix_replica_log_dir_id"), "replica", ["log_dir_id"], unique=False)
    op.create_table(
        "retired_file",
        sa.Column(
            "path",
            sa.Text(),
            nullable=False,
            comment="relative to the log dirs: a segment file, or a deleted topic's folder",
        ),
        sa.Column(
            "retired_ms",
            sa.BigInteger(),
            nullable=False,
            comment="store clock; deleted retired.file.retention.ms later",
        ),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_retired_file")),
        comment="Files that metadata no longer names but readers may still be on.",
    )
    op.create_table(
        "segment",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column(
            "base_offset",
            sa.BigInteger(),
            nullable=False,
            comment="offset of the first record as appended; offset = base_offset + offset_delta",
        ),
        sa.Column(
            "end_offset",
            sa.BigInteger(),
            nullable=False,
            comment="one more than the last offset covered; equals the next segment's base_offset",
        ),
        sa.Column(
            "record_count",
            sa.Integer(),
            nullable=False,
            comment="records held; less than end_offset - base_offset only after compaction",
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="size of the file or blob"),
        sa.Column("min_timestamp_ms", sa.BigInteger(), nullable=False, comment="smallest record timestamp"),
        sa.Column("max_timestamp_ms", sa.BigInteger(), nullable=False, comment="largest record timestamp"),
        sa.Column(
            "timestamp_type",
            sa.Integer(),
            nullable=False,
            comment="0 CreateTime, 1 LogAppendTime: a fact of the whole segment",
        ),
        sa.Column("leader_epoch", sa.BigInteger(), nullable=False, comment="of the append"),
        sa.Column("producer_id", sa.BigInteger(), nullable=True, comment="idempotent producer, if any"),
        sa.Column("producer_epoch", sa.BigInteger(), nullable=True, comment="its epoch"),
        sa.Column("first_sequence", sa.BigInteger(), nullable=True, comment="sequence of the first record"),
        sa.Column("codec", sa.String(length=16), nullable=False, comment="compression.type of the file"),
        sa.Column(
            "checksum", sa.String(length=32), nullable=False, comment="XXH3-128 of the file's or blob's bytes, hex"
        ),
        sa.Column(
            "name",
            sa.String(length=96),
            nullable=False,
            comment="unique for ever: <write id>-<n>.parquet, or the blob's id",
        ),
        sa.Column(
            "inline",
            sa.Boolean(),
            nullable=False,
            comment="true: the bytes are in table blob; false: a file in every replica's log dir",
        ),
        sa.Column(
            "change",
            sa.BigInteger(),
            nullable=False,
            comment="partition.change when the row came, so that publication finds what is new",
        ),
        sa.Column(
            "rewritten",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="rows were published before under another file (merge, compaction): no data change in Delta",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "base_offset", name=op.f("pk_segment")),
        comment="A run of records: Kafka's segment with its offset index (primary key) and time index.",
    )
    op.create_index(
        "ix_segment_inline",
        "segment",
        ["topic_id", "partition"],
        unique=False,
        sqlite_where=sa.text("inline = 1"),
        postgresql_where=sa.text("inline"),
    )
    op.create_index(
        op.f("ix_segment_topic_id_partition_change"), "segment", ["topic_id", "partition", "change"], unique=False
    )
    op.create_index(
        op.f("ix_segment_topic_id_partition_max_timestamp_ms_base_offset"),
        "segment",
        ["topic_id", "partition", "max_timestamp_ms", "base_offset"],
        unique=False,
    )
    op.create_table(
        "spark_batch",
        sa.Column("application", sa.String(length=512), nullable=False, comment="stream:<query id>, or txn:<txnAppId>"),
        sa.Column(
            "target",
            sa.String(length=249),
            nullable=False,
            comment="option topic of the write, or '' when the rows name it",
        ),
        sa.Column("version", sa.BigInteger(), nullable=False, comment="batch id or txnVersion of the last batch"),
        sa.Column("record_count", sa.BigInteger(), nullable=False, comment="rows of that batch"),
        sa.Column(
            "fingerprint",
            sa.String(length=16),
            nullable=False,
            comment="order-independent checksum of that batch's rows, hex",
        ),
        sa.Column("committed_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.PrimaryKeyConstraint("application", "target", name=op.f("pk_spark_batch")),
        comment="The last batch of each Spark sink: a replay changes nothing, other rows of that version are an error.",
    )
    op.create_table(
        "topic",
        sa.Column(
            "topic_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="key, never reused",
        ),
        sa.Column(
            "uuid",
            sa.String(length=32),
            nullable=False,
            comment="Kafka's topic id, 32 hex digits; its first 8 are in the folder's name",
        ),
        sa.Column("name", sa.String(length=249), nullable=False, comment="as in Kafka: [a-zA-Z0-9._-]{1,249}"),
        sa.Column(
            "collision_key",
            sa.String(length=249),
            nullable=False,
            comment="name with . replaced by _: two topics may not share it",
        ),
        sa.Column(
            "partition_count",
            sa.Integer(),
            nullable=False,
            comment="partitions are numbered from 0 to partition_count - 1",
        ),
        sa.Column("replication_factor", sa.Integer(), nullable=False, comment="replicas of each partition"),
        sa.Column(
            "configs",
            sa.Text(),
            nullable=False,
            comment="JSON object of the configs that differ from the defaults; values are strings",
        ),
        sa.Column("created_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_topic")),
        sa.UniqueConstraint("collision_key", name=op.f("uq_topic_collision_key")),
        sa.UniqueConstraint("name", name=op.f("uq_topic_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_topic_uuid")),
        comment="A topic.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "transaction",
        sa.Column("producer_id", sa.BigInteger(), nullable=False, comment="producer.producer_id"),
        sa.Column("producer_epoch", sa.BigInteger(), nullable=False, comment="epoch that began it"),
        sa.Column(
            "number",
            sa.BigInteger(),
            nullable=False,
            comment="counts the transactions of this producer, so that a late commit cannot touch a newer one",
        ),
        sa.Column("state", sa.String(length=16), nullable=False, comment="ongoing, committed or aborted"),
        sa.Column("began_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.Column("until_ms", sa.BigInteger(), nullable=False, comment="store clock; past it the coordinator aborts"),
        sa.Column(
            "era", sa.String(length=64), nullable=False, comment="boot id under which until_ms was written (SQLite)"
        ),
        sa.PrimaryKeyConstraint("producer_id", name=op.f("pk_transaction")),
        comment="The current or last transaction of a producer.",
    )
    op.create_table(
        "transaction_offset",
        sa.Column("producer_id", sa.BigInteger(), nullable=False, comment="transaction.producer_id"),
        sa.Column("group_id", sa.String(length=249), nullable=False, comment="consumer group"),
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("committed_offset", sa.BigInteger(), nullable=False, comment="offset to commit with the transaction"),
        sa.Column("commit_metadata", sa.Text(), nullable=False, comment="free text of the consumer"),
        sa.Column("member_id", sa.String(length=249), nullable=False, comment="member that owned the partition"),
        sa.Column("generation", sa.BigInteger(), nullable=False, comment="generation of the group that it belonged to"),
        sa.PrimaryKeyConstraint("producer_id", "group_id", "topic_id", "partition", name=op.f("pk_transaction_offset")),
        comment="Group offsets of an open transaction.",
    )
    op.create_table(
        "transaction_segment",
        sa.Column("producer_id", sa.BigInteger(), nullable=False, comment="transaction.producer_id"),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="order of the sends"),
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("facts", sa.Text(), nullable=False, comment="JSON of the batch as the append will need it"),
        sa.Column("name", sa.String(length=96), nullable=False, comment="segment.name to be"),
        sa.Column("inline", sa.Boolean(), nullable=False, comment="segment.inline to be"),
        sa.PrimaryKeyConstraint("producer_id", "position", name=op.f("pk_transaction_segment")),
        sa.UniqueConstraint("name", name=op.f("uq_transaction_segment_name")),
        comment="Batches of an open transaction: no offset, seen by nobody.",
    )
    op.create_table(
        "write_id",
        sa.Column(
            "write_id",
            sa.String(length=32),
            nullable=False,
            comment="prefix of the names of the files that its holder writes",
        ),
        sa.Column("holder", sa.Text(), nullable=False, comment="for people: what writes under it"),
        sa.Column(
            "until_ms",
            sa.BigInteger(),
            nullable=False,
            comment="store clock; past it, clean-up may delete the row, and then the files that no segment names",
        ),
        sa.Column(
            "era", sa.String(length=64), nullable=False, comment="boot id under which until_ms was written (SQLite)"
        ),
        sa.PrimaryKeyConstraint("write_id", name=op.f("pk_write_id")),
        comment="The right to create files. An append under an id without a row fails: clean-up and append cannot cross.",
    )
    op.create_table(
        "log_dir",
        sa.Column(
            "log_dir_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="key",
        ),
        sa.Column("broker_id", sa.Integer(), nullable=False, comment="owner"),
        sa.Column(
            "uri",
            sa.Text(),
            nullable=False,
            comment="URI that pyarrow.fs opens; without a scheme, relative to the embedded cluster's folder",
        ),
        sa.Column(
            "uuid", sa.String(length=36), nullable=False, comment="must equal the id in the log dir's own marker file"
        ),
        sa.Column(
            "counter",
            sa.BigInteger(),
            nullable=False,
            comment="must equal the marker's; a restored snapshot has a lower one",
        ),
        sa.Column("online", sa.Boolean(), nullable=False, comment="false once the controller has declared it failed"),
        sa.ForeignKeyConstraint(["broker_id"], ["broker.broker_id"], name=op.f("fk_log_dir_broker_id")),
        sa.PrimaryKeyConstraint("log_dir_id", name=op.f("pk_log_dir")),
        sa.UniqueConstraint("uri", name=op.f("uq_log_dir_uri")),
        comment="A folder or bucket of a broker.",
        sqlite_autoincrement=True,
    )
