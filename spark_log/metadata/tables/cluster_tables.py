"""Tables of the cluster: brokers, log dirs, leases, topics."""

from sqlalchemy import BigInteger, Boolean, ForeignKey, Integer, String, Text, text

from spark_log.metadata.tables.definition import SERIAL, column, tables_of

_table = tables_of("cluster")

broker = _table(
    "broker",
    column("broker_id", Integer, "chosen by the operator, > 0", primary_key=True, autoincrement=False),
    column("rack", String(249), "failure domain for placement and nearest-replica reads", nullable=True),
    column("served", Boolean, "true: a process serves it and holds a lease; false: embedded, clients do its work"),
    column("holder", Text, "host and process of a served broker, for display", nullable=True),
    column("epoch", BigInteger, "grows with each start of a served broker"),
    column("lease_until_ms", BigInteger, "store clock; NULL for an embedded broker", nullable=True),
    column(
        "lease_clock_epoch", String(64), "boot id of the host when lease_until_ms was written (SQLite)", nullable=True
    ),
    comment="A failure domain that keeps replicas.",
)

log_dir = _table(
    "log_dir",
    column("log_dir_id", SERIAL, "key", primary_key=True, autoincrement=True),
    column("broker_id", Integer, "owner", ForeignKey("broker.broker_id")),
    column(
        "uri",
        Text,
        "URI that pyarrow.fs opens; without a scheme, relative to the embedded cluster's folder",
        unique=True,
    ),
    column("uuid", String(36), "must equal the id in the log dir's own marker file"),
    column("counter", BigInteger, "must equal the counter in the marker file; a restored snapshot has a lower one"),
    column("online", Boolean, "false once the controller has declared it failed"),
    column("failure", Text, "why it is not online, for display", nullable=True),
    column(
        "suspect_bytes",
        BigInteger,
        "size of a file that a writer failed to write here, for the controller to check; NULL: no failure reported",
        nullable=True,
    ),
    comment="A folder or bucket of a broker.",
    sqlite_autoincrement=True,
)

lease = _table(
    "lease",
    column("name", String(32), "controller or coordinator", primary_key=True),
    column("holder", Text, "process that holds it: host, process id, random part; NULL: free", nullable=True),
    column("epoch", BigInteger, "grows with each change of holder; every transaction of the holder checks it"),
    column("until_ms", BigInteger, "store clock"),
    column("clock_epoch", String(64), "boot id of the host when until_ms was written (SQLite)"),
    comment="Leases of the controller and the coordinator, with fencing epochs.",
)

topic = _table(
    "topic",
    column("topic_id", SERIAL, "key, never reused", primary_key=True, autoincrement=True),
    column("uuid", String(32), "Kafka's topic id, 32 hex digits; its first 8 are in the folder's name", unique=True),
    column("name", String(249), "as in Kafka: [a-zA-Z0-9._-]{1,249}", unique=True),
    column("collision_key", String(249), "name with . replaced by _: two topics may not share it", unique=True),
    column("partition_count", Integer, "partitions are numbered from 0 to partition_count - 1"),
    column("replication_factor", Integer, "replicas of each partition"),
    column("configs", Text, "JSON object of the configs that differ from the defaults; values are strings"),
    column("created_ms", BigInteger, "store clock"),
    column(
        "typed_columns",
        Text,
        "typed columns of keys and values (TopicColumns, JSON); NULL: the topic never had any",
        nullable=True,
    ),
    column("store_id", Integer, "store that has its partitions; 0: the home store", server_default=text("0")),
    column(
        "state",
        String(16),
        "live; in the home store, creating or deleting while a data store has not followed yet; in a data store,"
        " creating while it gets the topic from another store",
        server_default="live",
    ),
    column("move", Text, "move to another store (TopicMove, JSON); NULL: it is not being moved", nullable=True),
    column(
        "move_epoch",
        BigInteger,
        "number of moves of the topic between stores, up to this copy",
        server_default=text("0"),
    ),
    comment="A topic. The home store has a row for each topic of the cluster, a data store one for each of its own.",
    sqlite_autoincrement=True,
)

store = _table(
    "store",
    column("store_id", Integer, "number of the store, > 0, never reused", primary_key=True, autoincrement=False),
    column("name", String(63), "chosen by the operator", unique=True),
    column("address", Text, "URL of its database, without a password"),
    column("state", String(16), "adding, active, draining or removed"),
    column("added_ms", BigInteger, "clock of the home store"),
    comment="The data stores of the cluster. Only the home store has rows.",
)
