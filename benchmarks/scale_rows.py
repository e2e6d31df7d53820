"""Simulated rows: what a large log would have in its metadata store, inserted directly and in bulk.

They are consistent with what appends, creations of topics and joins of groups write (tests/contract compares them), but
no segment file exists: only what needs no file may be measured on them. Segments are as large as segment.bytes allows,
so that there is nothing to merge, and published, so that there is nothing to publish.
"""

import json
import shutil
from pathlib import Path

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import EpochState, Member
from spark_log.groups.consumer.stored_values import Subscription
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.tables.publication import delta_tables, publish

RECORDS_PER_SEGMENT = 1_000
SEGMENT_BYTES = 100_000
CONFIGS = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": str(30 * 24 * 3600 * 1000)}
SESSION_TIMEOUT_MS = 30 * 60 * 1000
_PUBLISHED_TOGETHER = 100_000

_SERIES = {
    "sqlite": "(WITH RECURSIVE series(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM series WHERE n + 1 < :last)"
    " SELECT n FROM series) AS series",
    "postgresql": "generate_series(CAST(:first AS bigint), CAST(:last AS bigint) - 1) AS series(n)",
}
"""Rows with the numbers n of [first, last)."""


def _insert(table: sa.Table, columns: dict[str, str], dialect: str, source: str = "{series}") -> sa.TextClause:
    """INSERT INTO table SELECT the expressions FROM the source."""
    source = source.format(series=_SERIES[dialect])
    return sa.text(
        f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {source}"
    )


def add_segments(cluster: Cluster, topic: Topic, count: int, only: int | None = None) -> None:
    """Append so many segments to each partition of the topic, or to one of them."""
    store = cluster.of(topic).store
    now_ms = store.now().wall_ms
    in_topic = {"topic_id": topic.topic_id}

    def insert(connection: sa.Connection) -> None:
        columns = {
            "topic_id": "p.topic_id",
            "partition": "p.partition",
            "base_offset": f"p.log_end_offset + series.n * {RECORDS_PER_SEGMENT}",
            "end_offset": f"p.log_end_offset + (series.n + 1) * {RECORDS_PER_SEGMENT}",
            "record_count": str(RECORDS_PER_SEGMENT),
            "bytes": str(SEGMENT_BYTES),
            "min_timestamp_ms": ":now_ms",
            "max_timestamp_ms": ":now_ms",
            "timestamp_type": "0",
            "leader_epoch": "p.leader_epoch",
            "codec": "'zstd'",
            "checksum": f"'{'0' * 32}'",
            "name": f"'{'0' * 32}-' || (p.log_end_offset + series.n) || '.parquet'",
            "inline": "false",
            "change": "p.change + series.n + 1",
            "rewritten": "false",
            "appended_ms": ":now_ms",
        }
        source = "{series}, partition AS p WHERE p.topic_id = :topic_id"
        if only is not None:
            source += f" AND p.partition = {only}"
        statement = _insert(t.segment, columns, connection.dialect.name, source)
        connection.execute(statement, {**in_topic, "first": 0, "last": count, "now_ms": now_ms})
        more = count * RECORDS_PER_SEGMENT
        p, r = t.partition.c, t.replica.c
        ends = {name: p[name] + more for name in ("log_end_offset", "high_watermark", "recovery_point")}
        these = sa.true() if only is None else p.partition == only
        partitions = t.partition.update().where(p.topic_id == topic.topic_id, these)
        connection.execute(partitions.values(**ends, change=p.change + count))
        these = sa.true() if only is None else r.partition == only
        replicas = t.replica.update().where(r.topic_id == topic.topic_id, these)
        connection.execute(replicas.values(log_end_offset=r.log_end_offset + more))

    store.transact(insert)


def add_published_segments(cluster: Cluster, topic: Topic, count: int) -> None:
    """As `add_segments`, and list them in the topic's Delta table."""
    step = max(1, _PUBLISHED_TOGETHER // topic.partition_count)
    for first in range(0, count, step):
        add_segments(cluster, topic, min(step, count - first))
        publish(cluster, topic)


def add_topics(cluster: Cluster, like: str, numbers: range) -> None:
    """Topics as the topic `like` is now, in its store: partitions, segments, offsets, and published Delta table."""
    topic = cluster.store.read(lambda connection: find_topic(connection, like))
    view = cluster.of(topic)
    [folder] = map(Path, delta_tables(view, topic).values())
    n = t.topic.c
    copies = sa.select(t.topic).where(n.collision_key.startswith(f"{like}-", autoescape=True))
    series = {"first": numbers.start, "last": numbers.stop}

    def insert(connection: sa.Connection) -> None:
        dialect = connection.dialect.name
        uuid = "printf('%08x', n)" if dialect == "sqlite" else "lpad(to_hex(n), 8, '0')"
        name = f"'{like}-' || n"
        columns = {column: f"topic.{column}" for column in _OF_TOPIC}
        columns |= {"uuid": f"{uuid} || '{topic.uuid[8:]}'", "name": name, "collision_key": name}
        source = f"{{series}}, topic WHERE topic.topic_id = {topic.topic_id}"
        connection.execute(_insert(t.topic, columns, dialect, source), series)

    def insert_rows(connection: sa.Connection) -> None:
        for table in (t.partition, t.replica, t.segment, t.publication, t.publication_cursor):
            copied = {column.name: f"one.{column.name}" for column in table.columns} | {"topic_id": "new.topic_id"}
            source = (
                f"{{series}}, topic AS new, {table.name} AS one"
                f" WHERE new.name = '{like}-' || n AND one.topic_id = {topic.topic_id}"
            )
            connection.execute(_insert(table, copied, connection.dialect.name, source), series)

    cluster.store.transact(insert)
    if view is not cluster:
        stated = cluster.store.read(lambda connection: connection.execute(copies).mappings().all())
        held = view.store.read(lambda connection: set(connection.execute(sa.select(n.topic_id)).scalars()))
        rows = [dict(row) for row in stated if row["topic_id"] not in held]
        view.store.transact(lambda connection: connection.execute(t.topic.insert(), rows))
    view.store.transact(insert_rows)
    for number in numbers:
        uuid = f"{number:08x}{topic.uuid[8:]}"
        target = folder.parent / f"{like}-{number}-{uuid[:8]}" / "_delta_log"
        target.mkdir(parents=True)
        for file in (folder / "_delta_log").glob("*.json"):
            (target / file.name).write_text(file.read_text().replace(topic.uuid, uuid))
        for file in (folder / "_delta_log").glob("*.parquet"):
            shutil.copy(file, target / file.name)


_OF_TOPIC = ("partition_count", "replication_factor", "configs", "created_ms", "typed_columns", "store_id", "state")


def add_members(cluster: Cluster, group_id: str, topic: Topic, numbers: range) -> None:
    """Live members of a group with a stable assignment: member n owns partition n of the topic."""
    said = Subscription(frozenset({topic.name}), ("range",))

    def insert(connection: sa.Connection) -> None:
        now = cluster.store.clock(connection)
        generation = rows.lock_or_make_group(connection, group_id, now).group.generation + 1
        members, owned = [], []
        for number in numbers:
            mine = frozenset([TopicPartition(topic.name, number)])
            member_id = f"member-{number:06}"
            member = Member(said.topics, target=mine, generation=generation)
            until_ms = now.lease_ms + SESSION_TIMEOUT_MS
            state = EpochState(member_id, SESSION_TIMEOUT_MS, current=mine, topic_ids=frozenset([topic.topic_id]))
            row = rows.MemberRow(
                member_id, None, "benchmark", "here", said, member, SESSION_TIMEOUT_MS, until_ms, now.clock_epoch, state
            )
            rows.insert_member(connection, group_id, row)
            members.append(row)
            owned.append({"group_id": group_id, "topic": topic.name, "partition": number, "member_id": member_id})
        connection.execute(t.group_partition.insert(), owned)
        in_group = t.group_member.c.group_id == group_id
        connection.execute(t.group_member.update().where(in_group).values(generation=generation))
        facts = json.dumps({topic.name: [topic.topic_id, topic.partition_count]})
        connection.execute(
            t.consumer_group.update().where(t.consumer_group.c.group_id == group_id).values(
                generation=generation, target_generation=generation, assignor="range", topics=facts, empty_since_ms=None
            )
        )  # fmt: skip

    cluster.store.transact(insert)


def analyze(cluster: Cluster) -> None:
    """Statistics of the tables, which PostgreSQL's autovacuum would make a minute later."""
    if not cluster.store.sqlite:
        with cluster.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
