"""Whether every log dir has what the metadata says of it: the files of its replicas, and their Delta tables."""

import pyarrow as pa
import sqlalchemy as sa
import xxhash
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.topics import find_topics
from spark_log.log.delta import storage_options
from spark_log.metadata import tables as t

_P, _R, _S = t.partition.c, t.replica.c, t.segment.c


def assert_delta_is_the_log(cluster: Cluster) -> None:
    """Invariant 11: each online log dir's table of each topic lists the sealed segments of its replicas up to
    min(high watermark, the replica's LEO), each once, and no rows but theirs can be read from it.
    """
    topics = cluster.store.read(find_topics).values()
    online = sa.select(t.log_dir.c.log_dir_id).where(t.log_dir.c.online)
    log_dirs = cluster.store.read(lambda connection: set(connection.execute(online).scalars()))
    for log_dir_id, info in cluster.log_dirs().items():
        if log_dir_id not in log_dirs:
            continue
        log_dir = LogDir(info.uri)
        for topic in topics:
            limit = sa.case((_P.high_watermark < _R.log_end_offset, _P.high_watermark), else_=_R.log_end_offset)
            query = _segments_of(topic.topic_id, log_dir_id).where(_S.end_offset <= limit)
            rows = cluster.store.read(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            wanted = sorted(f"_segments/{row.partition}/{row.name}" for row in rows)
            where = f"topic {topic.name}, log dir {info.uri}"
            try:
                table = DeltaTable(log_dir.location(topic.folder), storage_options=storage_options(log_dir))
            except TableNotFoundError:
                assert not wanted, f"{where}: no Delta table for {wanted}"
                continue
            active = sorted(pa.table(table.get_add_actions()).column("path").to_pylist())
            assert active == wanted, f"{where}: {len(active)} active files, {len(wanted)} wanted"
            found = table.to_pyarrow_table(columns=["partition"]).num_rows
            assert found == sum(row.record_count for row in rows), f"{where}: {found} rows"


def assert_replicas_are_whole(cluster: Cluster) -> None:
    """Invariant 10: every segment below a replica's LEO lies whole in its log dir, if that is online."""
    topics = cluster.store.read(find_topics).values()
    infos = cluster.log_dirs()
    online = cluster.store.read(
        lambda connection: (
            connection.execute(sa.select(t.log_dir.c.log_dir_id).where(t.log_dir.c.online)).scalars().all()
        )
    )
    for topic in topics:
        for log_dir_id in online:
            log_dir = LogDir(infos[log_dir_id].uri)
            query = _segments_of(topic.topic_id, log_dir_id).where(_S.end_offset <= _R.log_end_offset)
            for row in cluster.store.read(lambda connection, query=query: connection.execute(query).all()):  # type: ignore[misc]
                path = segment_path(topic.folder, row.partition, row.name)
                digest = xxhash.xxh3_128()
                for block in log_dir.read_blocks(path):
                    digest.update(block)
                assert digest.hexdigest() == row.checksum, f"{log_dir.location(path)} is not what was written"


def _segments_of(topic_id: int, log_dir_id: int) -> sa.Select[tuple[int, str, int, str]]:
    """Partition, name, records, checksum of the files of the partitions that have a replica in the log dir."""
    source = t.replica.join(t.partition, (_P.topic_id == _R.topic_id) & (_P.partition == _R.partition)).join(
        t.segment, (_S.topic_id == _R.topic_id) & (_S.partition == _R.partition)
    )
    return (
        sa.select(_S.partition, _S.name, _S.record_count, _S.checksum)
        .select_from(source)
        .where(_R.topic_id == topic_id, _R.log_dir_id == log_dir_id, ~_S.inline)
    )
