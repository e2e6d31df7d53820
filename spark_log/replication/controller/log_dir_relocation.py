"""Changes the recorded location of a log dir."""

from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.brokers import change_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import open_log_dir
from spark_log.cluster.log_dir_uris import normalise_uri, refuse_overlap, refuse_percent_sign
from spark_log.errors import InvalidConfigurationError, redact
from spark_log.log.partitions.partition_rows import lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import fence_writers
from spark_log.metadata.sql_columns import LOG_DIR, REPLICA


def relocate_log_dir(cluster: Cluster, from_: str, to: str) -> None:
    """Record that a log dir is at another location now, for example after a restore into another folder or bucket.

    The files, with the log dir's marker, must already be at the new location. The next inspection of the log dirs lists
    them, and lowers the LEO of replicas that lack some: they may be those of a backup. Running clients do not notice
    the change: restart them. An append of files that they have written to the old location is refused. Raises
    InvalidConfigurationError if no log dir is at `from_`, or the new location overlaps another log dir,
    LogDirMismatchError if the new location is not this log dir, StorageUnavailableError, and the errors of the stores.
    """
    old, new = normalise_uri(from_), normalise_uri(to)
    infos = {info.uri: info for info in cluster.log_dirs().values()}
    if old not in infos:
        known = ", ".join(redact(uri) for uri in infos)
        raise InvalidConfigurationError(f"log dir: there is none at {redact(old)}; there are {known}")
    info = infos.pop(old)
    refuse_percent_sign(new)
    refuse_overlap(new, list(infos))
    open_log_dir(replace(info, uri=new))

    def relocate(connection: sa.Connection) -> None:
        here = sa.select(REPLICA.topic_id, REPLICA.partition).where(REPLICA.log_dir_id == info.log_dir_id)
        before = lock_partitions(connection, [(topic_id, number) for topic_id, number in connection.execute(here)])
        save_partitions(connection, before, {key: fence_writers(state) for key, state in before.items()})
        # the marker of the new location has a smaller counter, so that an inspection takes it for another state
        change_log_dirs(connection, [info.log_dir_id], uri=new, counter=LOG_DIR.counter + 1)

    home, *others = cluster.store_ids()
    # The home store changes after the others, so that the command may be repeated after a failure. Meanwhile a
    # coordinator may have copied the old location from the home store to the others again, so these change twice.
    for store_id in (*others, home, *others):
        cluster.at(store_id).store.transact(relocate, announce=True)
