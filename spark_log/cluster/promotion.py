"""Writes beats of the metadata store, by which the coordinator accepts a promotion without a person.

Every BEAT_MS the coordinator commits a beat, and then writes its number to each online log dir. If a log dir has a
later beat than a promoted standby, the standby lacks transactions of its primary. Beats are needed, and written, only
on PostgreSQL with the cluster setting store.promotion.accept=synchronous.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from spark_log.cluster import promotion_rules as acceptance_rules
from spark_log.cluster.brokers import ONLINE_LOG_DIRS
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence
from spark_log.cluster.log_dir import ANSWER_S_MAX, LogDirInfo
from spark_log.cluster.promotion_rules import Promotion
from spark_log.config import ClusterSettings
from spark_log.errors import CorruptRecordError, SparkLogError, StoreChangedError, redact
from spark_log.metadata.connections import server_identity
from spark_log.metadata.connections.server_identity import Beat, Identity
from spark_log.metadata.store import Store
from spark_log.process import ask_in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEAT_MS = 10_000


def beat(cluster: Cluster, settings: ClusterSettings, fence: Fence) -> None:
    """Commit a beat and write it to the online log dirs. If the server is not the recorded one, first accept its
    promotion.

    Does nothing on SQLite, or if the identity of the server is unknown. If promotions are not accepted, the last beat
    is voided: a node that is promoted by force meanwhile is not accepted later. A log dir that cannot be written,
    or does not answer within ANSWER_S_MAX, is skipped. Raises StoreChangedError if the promotion needs a person.
    """
    store = cluster.store
    if store.sqlite:
        return
    if settings.store_promotion_accept != "synchronous":
        _void_beat(store, fence)
        return
    recorded, now = store.read(lambda c: (server_identity.recorded(c), server_identity.of_server(c)))
    if recorded is None or now is None:
        return
    if not now.is_same_as(recorded):
        _accept(cluster, settings, fence, recorded, now)

    def commit(connection: sa.Connection) -> int:
        server_identity.check_identity(connection)
        return server_identity.beat(connection, store.clock(connection).wall_ms)

    number, file_name = store.transact(commit, fence=fence), _file_of(cluster)

    def write(info: LogDirInfo) -> None:
        file = cluster.log_dir(info).replace(file_name)
        file.write(str(number).encode())
        file.commit()

    online = store.read(lambda connection: set(connection.execute(ONLINE_LOG_DIRS).scalars()))
    infos = [info for log_dir_id, info in cluster.log_dirs().items() if log_dir_id in online]
    _answers({info: ask_in_thread("spark-log-beat", info, partial(write, info)) for info in infos})


def _void_beat(store: Store, fence: Fence) -> None:
    if store.read(server_identity.last_beat).at_ms is not None:
        store.transact(server_identity.void_beat, fence=fence)


def _accept(cluster: Cluster, settings: ClusterSettings, fence: Fence, recorded: Identity, now: Identity) -> None:
    store = cluster.store
    beats = _beats_of_log_dirs(cluster, now)

    def accept(connection: sa.Connection) -> tuple[Beat, str | None]:
        if server_identity.of_server(connection) != now or server_identity.recorded(connection) != recorded:
            return Beat(0, None, False), "it has changed again"
        last, now_ms = server_identity.last_beat(connection), store.clock(connection).wall_ms
        promotion = Promotion(
            same_system=now.is_system_of(recorded),
            recorded_timeline=recorded.timeline,
            timeline=now.timeline,
            beat=last.number,
            beat_ms=last.at_ms,
            synchronous=last.synchronous,
            beats_of_log_dirs=beats,
            now_ms=now_ms,
        )
        why_not = acceptance_rules.refusal(
            promotion, settings.store_promotion_accept, settings.store_promotion_max_age_ms
        )
        if why_not is None:
            server_identity.accept_promotion(connection, now_ms)
        return last, why_not

    last, why_not = store.transact(accept, fence=fence)
    if why_not is not None:
        raise StoreChangedError(
            f"the metadata store was {recorded}, and is {now}: not accepted without a person, since {why_not}; clean-up"
            " of files and publication to Delta tables have stopped. See what it lacks with `spark-log store status`,"
            " then allow both with `spark-log store accept`"
        )
    logger.warning("the metadata store was promoted from %s to %s, and accepted at beat %s", recorded, now, last.number)


def _beats_of_log_dirs(cluster: Cluster, now: Identity) -> list[int | None]:
    """Return the beat of each log dir that answers in time, None for a log dir without a beat. `now` is the promoted
    server: an answer to a request from before its promotion may lack the last beats of the primary.
    """
    file_name = _file_of(cluster)

    def read(info: LogDirInfo) -> int | None:
        try:
            log_dir = cluster.log_dir(info)
            log_dir.verify(info.uuid)
            return int(log_dir.read(file_name))
        except CorruptRecordError:
            return None

    infos = cluster.log_dirs().values()
    return _answers({info: ask_in_thread("spark-log-read-beat", (info, now), partial(read, info)) for info in infos})


def _answers(requests: "Mapping[LogDirInfo, Future[T]]") -> list[T]:
    """Return the answers of the log dirs that answer within ANSWER_S_MAX. The other log dirs are logged."""
    wait(requests.values(), ANSWER_S_MAX)
    answers: list[T] = []
    for info, request in requests.items():
        if not request.done():
            logger.info("log dir %s: no answer about its beat in %s s", redact(info.uri), ANSWER_S_MAX)
            continue
        try:
            answers.append(request.result())
        except (SparkLogError, OSError, ValueError) as error:
            logger.info("log dir %s has no beat: %s", redact(info.uri), redact(str(error)))
    return answers


def _file_of(cluster: Cluster) -> str:
    """Return the name of the file in each log dir with the number of the last beat of the store."""
    return f"store-{cluster.store_id}.beat"


def kept_since_ms(connection: sa.Connection, store: Store, delay_ms: int) -> int | None:
    """Return `promotion_rules.kept_since_ms` for this store at the present time."""
    accepted_ms, promoted_ms = server_identity.accepted_at_ms(connection), server_identity.promoted_at_ms(connection)
    if accepted_ms is None and promoted_ms is None:
        return None
    return acceptance_rules.kept_since_ms(accepted_ms, promoted_ms, store.clock(connection).wall_ms, delay_ms)
