"""Defines points where a test can kill or stop this process, to check which state a crash leaves there.

`SPARK_LOG_FAILPOINT=append.committed` kills the process with SIGKILL when it reaches the point for the first time,
`append.committed:3` when it reaches it for the third time. `append.committed:3:stop` stops the process with SIGSTOP
instead. Without the variable, a point costs one dictionary look-up.
"""

import os
import signal
import threading

POINTS = {
    "file.temporary-written": "a segment's bytes are in a temporary file, not forced to disk",
    "file.renamed": "a segment file has its final name; no metadata refers to it yet",
    "append.decided": "inside the append transaction, before COMMIT",
    "append.committed": "the append transaction is durable; the caller has no answer yet",
    "seal.file-written": "a sealed segment file exists; the transaction that swaps it in has not begun",
    "seal.committed": "the tail has been swapped for the sealed file; the Delta table is not updated",
    "columns.file-written": "backfill: the file is in the log dirs, and no metadata names it",
    "columns.committed": "backfill: the file has replaced its input, and the Delta table still lists that",
    "merge.file-written": "a merged segment file exists; the transaction that swaps it in has not begun",
    "merge.committed": "small segments have been swapped for the merged file; the Delta table is not updated",
    "retention.decided": "inside the transaction that moves log start offsets, before COMMIT",
    "retention.committed": "expired segments have left the metadata; the Delta table is not updated",
    "clean_up.write-ids-expired": "expired write ids are removed; the files written under them still exist",
    "clean_up.retired-deleted": "retired files are deleted; their rows still exist",
    "clean_up.retired-forgotten": "the rows of deleted files are removed",
    "clean_up.topic-deleted": "a deleted topic's folder is removed from the log dirs; its row still exists",
    "clean_up.orphans-found": "orphaned files are found; none has been deleted",
    "compact.file-written": "a compacted segment file exists; the transaction that swaps it in has not begun",
    "compact.swapped": "one compacted file has been swapped in; the rest of the pass has not been done",
    "compact.before-noted": "all files of a compaction pass are swapped in; table compaction has no row of it",
    "mirror.files-written": "a mirror's files are in the target's log dirs; their append has not begun",
    "erase.sealed": "tails have been sealed before an erase; no record has been erased",
    "erase.file-written": "a segment's new file without the erased records exists; no metadata refers to it",
    "erase.swapped": "one segment without the erased records is in the log; others may still hold some",
    "erase.published": "no segment of the log holds an erased record; the old files are retired",
    "erase.marked": "the retired files of a purge are due for deletion; none has been deleted",
    "transaction.initialized": "a transactional id has its new epoch; its producer has no answer yet",
    "gateway.transaction-request-read": "a request of a transaction has been read, and nothing of it is executed",
    "gateway.transaction-begun": "a Kafka client's transaction is open; the client has no answer yet",
    "gateway.consumer-heartbeat-decided": "a heartbeat of KIP-848 has been decided; the client has no answer yet",
    "gateway.group-joined": "a member of a classic group has joined; the client has no answer yet",
    "gateway.group-synced": "the leader of a classic group has assigned; the client has no answer yet",
    "gateway.offsets-added": "group offsets are part of a transaction; the client has no answer yet",
    "transaction.registered": "batches are pending; the producer has no answer yet",
    "transaction.aborted": "a transaction is aborted; the files that it had written still exist",
    "transaction.committed": "a transaction is committed; the producer has no answer yet",
    "part.joined": "home knows a part of a transaction in a data store, which has nothing of it",
    "part.registered": "batches are pending in a part; the producer has no answer yet",
    "part.prepared": "a part is prepared; home has not decided",
    "part.decided": "home has committed a transaction; its parts have not followed",
    "part.rolled-forward": "a part is committed in its data store; home does not know that",
    "group.changed": "the group has a new generation; its target assignment has not been computed",
    "group.target-decided": "inside the transaction that writes the members' targets, before COMMIT",
    "group.target-written": "the members' targets are durable; no member has received its own",
    "group.assigned": "a heartbeat's changes are durable; the member has no answer yet",
    "share.acquired": "records are acquired; the member has no answer yet",
    "share.acknowledged": "acknowledgements are durable; the member has no answer yet",
    "share.archived": "dead letters and the end of their records are durable; nothing else is done",
    "share.locks-moved": "locks belong to a producer's transaction; the producer has no answer yet",
    "copy.file-written": "a replica's copy of a segment has its final name; its log end offset has not moved",
    "copy.committed": "a replica's log end offset has moved past the copied segments",
    "controller.elected": "inside the transaction that elects leaders, before COMMIT",
    "controller.lease-taken": "the controller's lease is durable; it has done nothing yet",
    "reassignment.begun": "the new replicas of a reassignment are in the metadata; nothing has been copied",
    "reassignment.switched": "a reassignment is done in the metadata; the old replicas' files have not been deleted",
    "store.reserved": "a new data store has a number in the home store; its database is still empty",
    "store.created": "a new data store has its tables; the home store counts it as being added",
    "topic.created-at-home": "the home store has the row of a new topic, whose data store has nothing of it",
    "topic.copied": "the data store has a new topic with its partitions; home counts it as being created",
    "topic.deleted-at-home": "the home store has deleted a topic; its data store still has all rows of it",
    "topic.copy-deleted": "the data store has deleted a topic; home still has the row that reserved its id",
    "move.begun": "home has recorded the move of a topic to another store; nothing else has changed",
    "move.frozen": "the partitions of a topic that is being moved are frozen; nothing has been copied",
    "move.copying": "the rows of a topic that is being moved are written to its new store, and not committed",
    "move.copied": "the new store has the topic, frozen, and home has not decided; if it is home, it has decided",
    "move.decided": "home has decided that the topic is in its new store; there it is frozen and not live",
    "move.followed": "a moved topic is live in its new store; the old store still has its rows",
    "broker.registered": "a served broker's lease is durable; it has done nothing yet",
    "coordinator.lease-taken": "the coordinator's lease is durable; it has done nothing yet",
    "stream.history-planned": "the files of a stream's history are known; its folder has no list of them",
    "stream.history-written": "the list of a stream's history is in its folder; the query has not begun",
    "stream.batch-begun": "inside foreachBatch, before the first output of a micro-batch is written",
    "stream.table-noted": "inside foreachBatch, the table version of the batch is recorded, not used yet",
    "stream.output-written": "an output of a micro-batch is durable; the next one, or Spark's commit, has not begun",
    "publish.before-commit": "the intent of a Delta commit is recorded in the metadata; the Delta log is unchanged",
    "current.vectors-written": "the vectors of a current-state table's commit are on disk; its log is unchanged",
    "iceberg.registered": "an Iceberg table is in its catalog; the metadata files of the topic's folder are there",
    "iceberg.committed": "an Iceberg commit is done; version-hint.text names the version before it",
    "publish.committed": "the Delta commit is done; the metadata store has not recorded it",
    "publish.recorded": "the metadata store has recorded the Delta version",
}

_ENVIRONMENT_VARIABLE = "SPARK_LOG_FAILPOINT"
_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Kill or stop this process if SPARK_LOG_FAILPOINT names this point. `name` is a key of `POINTS`."""
    wanted = os.environ.get(_ENVIRONMENT_VARIABLE)
    if wanted is None:
        return
    point, _, rest = wanted.partition(":")
    count, _, action = rest.partition(":")
    assert name in POINTS and point in POINTS, f"no such failpoint: {name if name not in POINTS else point}"
    if point != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(count or 1):
        if action == "stop":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread stops at once, then all others
        else:
            os.kill(os.getpid(), signal.SIGKILL)
