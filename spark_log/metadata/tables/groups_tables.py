"""Tables of groups: members, assignments, committed offsets, and the records that share groups work on."""

from sqlalchemy import BigInteger, Index, Integer, LargeBinary, String, Text, text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("groups")

consumer_group = _table(
    "consumer_group",
    column("group_id", String(249), "name of the group", primary_key=True),
    column("generation", BigInteger, "grows with each change of members, subscriptions or their topics' partitions"),
    column(
        "target_generation",
        BigInteger,
        "generation that the members' targets were computed for; if below generation, they are stale",
        server_default=text("0"),
    ),
    column("assignor", Text, "name of the assignor that computed the targets"),
    column(
        "topics",
        Text,
        "JSON: name -> [topic_id, partition count] of the subscribed topics when the targets were computed",
        server_default=text("'{}'"),
    ),
    column("empty_since_ms", BigInteger, "store clock; NULL while it has members", nullable=True),
    column(
        "type",
        String(20),
        "classic if it has a row in classic_group; share; else consumer",
        server_default=text("'consumer'"),
    ),
    comment="A consumer group.",
)

group_member = _table(
    "group_member",
    column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    column("member_id", String(249), "made by the member, unique", primary_key=True),
    column("instance_id", String(249), "group.instance.id of a static member", nullable=True),
    column("client", Text, "client id and host, for describe"),
    column("subscription", Text, "JSON: topics, and the assignors in order of preference"),
    column("target", Text, "JSON: partitions that the assignor assigned to it"),
    column("generation", BigInteger, "member epoch: the target_generation that it has come to; commits carry it"),
    column("session_timeout_ms", Integer, "its membership ends after this time without a heartbeat"),
    column("until_ms", BigInteger, "store clock; end of its session"),
    column("clock_epoch", String(64), "boot id of the host when until_ms was written (SQLite)"),
    column("protocol", String(20), "classic, consumer or share: how it speaks to the group"),
    column("epoch_state", Text, "JSON: its epoch before, what it was told, its connection, a deadline"),
    column("classic_protocols", Text, "of a classic member: as classic_member.protocols", nullable=True),
    comment="A member of a group.",
)

classic_group = _table(
    "classic_group",
    column("group_id", String(249), "consumer_group.group_id, whose row has its generation", primary_key=True),
    column("state", String(40), "Empty, PreparingRebalance, CompletingRebalance or Stable"),
    column("protocol_type", Text, "what its members are, such as connect"),
    column("protocol", Text, "protocol of the generation; empty without one"),
    column("leader", String(249), "classic_member.member_id that computes the assignment; empty without one"),
    column("deadline_ms", BigInteger, "store clock; end of the time to join or to sync", nullable=True),
    column("clock_epoch", String(64), "boot id of the host when deadline_ms was written (SQLite)"),
    comment="A group whose members assign by a protocol of their own: Kafka Connect, Kafka Streams.",
)

classic_member = _table(
    "classic_member",
    column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    column("member_id", String(249), "made by a gateway, unique", primary_key=True),
    column("instance_id", String(249), "group.instance.id of a static member", nullable=True),
    column("client", Text, "JSON: client id and host, for describe"),
    column("protocols", Text, "JSON: names in order of preference with their metadata, base64"),
    column("session_timeout_ms", Integer, "its membership ends after this time without a heartbeat"),
    column("rebalance_timeout_ms", Integer, "time that it has to join again"),
    column("until_ms", BigInteger, "store clock; end of its session"),
    column("clock_epoch", String(64), "boot id of the host when until_ms was written (SQLite)"),
    column("phase", String(20), "pending, joining, syncing or synced"),
    column("assignment", LargeBinary, "of the leader, for this member"),
    comment="A member of a classic group.",
)

group_partition = _table(
    "group_partition",
    column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    column("topic", String(249), "topic.name, also of a deleted topic", primary_key=True),
    partition_number(primary_key=True),
    column("member_id", String(249), "group_member.member_id: owns the partition until it revokes it"),
    Index(None, "group_id", "member_id"),
    comment="The owner of each partition in a group; the primary key allows at most one.",
)

group_offset = _table(
    "group_offset",
    column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("committed_offset", BigInteger, "next offset that the group will read"),
    column("leader_epoch", BigInteger, "of the last record read; -1 unknown"),
    column("commit_metadata", LargeBinary, "free text of the consumer, in UTF-8: it may have NUL characters"),
    column("committed_ms", BigInteger, "store clock, for offset retention"),
    column("position", BigInteger, "offset of the commit in its partition of __consumer_offsets"),
    column(
        "log_partition",
        Integer,
        "partition of __consumer_offsets; -1: committed before that topic existed",
        server_default=text("-1"),
    ),
    Index(None, "log_partition", "position"),
    deleted_with=("topic",),
    comment="Committed offsets.",
)

group_config = _table(
    "group_config",
    column("group_id", String(249), "name of the group, which may not exist yet", primary_key=True),
    column("configs", Text, "JSON: name -> text of the configs that are set"),
    comment="Configs of groups.",
)

share_partition = _table(
    "share_partition",
    column("group_id", String(249), "consumer_group.group_id of a share group", primary_key=True),
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("leader_epoch", BigInteger, "of the partition when next_offset was last compared with its truncations"),
    column("start_offset", BigInteger, "first unfinished offset (SPSO)"),
    column("next_offset", BigInteger, "first offset that was never acquired (SPEO + 1)"),
    column("last_lock", BigInteger, "number of the last lock; grows with each acquisition"),
    column("ranges", LargeBinary, "36 bytes for each range of unfinished records below next_offset (share/rows.py)"),
    column("members", Text, "JSON: ids of the members in ranges"),
    column("available", BigInteger, "records in ranges without a lock"),
    column("unfinished", BigInteger, "records in all ranges"),
    column("archiving", BigInteger, "records in ranges that wait for their dead letter"),
    column("delayed", BigInteger, "rows in share_delayed"),
    column("wake_ms", BigInteger, "store clock (leases); end of the first lock; NULL without a lock", nullable=True),
    column("clock_epoch", String(64), "boot id of the host when the ends of locks were written (SQLite)"),
    column("lock_timeouts", BigInteger, "records whose lock ended by time, in all"),
    column("dead_letters", BigInteger, "dead letters written, in all"),
    column("expired", BigInteger, "unfinished records that retention removed, in all"),
    deleted_with=("topic",),
    comment="The state of a partition in a share group. Its row lock orders what members acquire and acknowledge.",
    postgresql_with={"fillfactor": 50},
)

share_delayed = _table(
    "share_delayed",
    column("group_id", String(249), "consumer_group.group_id of a share group", primary_key=True),
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("offset", BigInteger, "of the record", primary_key=True),
    column("due_ms", BigInteger, "store clock (wall); it is delivered then or later"),
    column("deliveries", Integer, "number of its deliveries so far"),
    Index(None, "group_id", "topic_id", "partition", "due_ms"),
    deleted_with=("topic",),
    comment="Records of share groups that are delivered later.",
)
