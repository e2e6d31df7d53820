"""Tables of the store itself: its identity, its settings, and the tokens of recent commits."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Integer, LargeBinary, String, Text, text

from spark_log.metadata.tables.definition import column, tables_of

_table = tables_of("metadata")

cluster = _table(
    "cluster",
    column(
        "singleton",
        Integer,
        "always 1: there is one row",
        CheckConstraint("singleton = 1", name="one_row"),
        primary_key=True,
    ),
    column("cluster_id", String(36), "name of the cluster, a UUID; every log dir carries it"),
    column("created_ms", BigInteger, "when the cluster was made, by the store's clock"),
    column(
        "system_identifier",
        String(32),
        "system identifier of the PostgreSQL server that holds the metadata; NULL: not known",
        nullable=True,
    ),
    column(
        "timeline",
        BigInteger,
        "timeline of that server's write-ahead log; a promotion or a restore raises it",
        nullable=True,
    ),
    column(
        "accepted_ms",
        BigInteger,
        "store clock; when an operator accepted another server or timeline",
        nullable=True,
    ),
    column(
        "settings",
        Text,
        "cluster settings that differ from the defaults: JSON, dotted name to text",
        server_default="{}",
    ),
    column("beat", BigInteger, "number of the coordinator's last beat (PostgreSQL)", server_default=text("0")),
    column("beat_ms", BigInteger, "store clock; time of that beat; NULL: there has been none", nullable=True),
    column(
        "synchronous",
        Boolean,
        "whether the server waited for a synchronous standby at that beat; NULL: there has been none",
        nullable=True,
    ),
    column(
        "promoted_ms",
        BigInteger,
        "store clock; when the coordinator accepted the promotion of a standby",
        nullable=True,
    ),
    column(
        "oldest_revision",
        Integer,
        "number of the oldest schema revision whose code may use this store; every version reads it, so it stays",
        server_default=text("0"),
    ),
    column("secret", LargeBinary, "random; from it come the salts that users who do not exist are shown"),
    column("store_id", Integer, "0: the home store; else the number of this data store", server_default=text("0")),
    column("table_oid", BigInteger, "OID of this table; a restore of a dump changes it (PostgreSQL)", nullable=True),
    comment="The cluster that this store describes.",
)

commit_token = _table(
    "commit_token",
    column("token", String(32), "16 random bytes in hex, used by one transaction", primary_key=True),
    column(
        "committed",
        Boolean,
        "true: written by the transaction itself; false: written by a client that asked, so it can no longer commit",
    ),
    column("at_ms", BigInteger, "store clock"),
    comment="Recent transactions on PostgreSQL, so that a client can find out whether one was committed.",
)
