"""Named points where a test can kill this process, to show what a crash there leaves behind.

`SPARK_LOG_FAILPOINT=append.committed` kills the process with SIGKILL the first time it passes the point;
`append.committed:3` the third time. Without the variable a point costs one dictionary look-up.
"""

import os
import signal

POINTS = {
    "file.temporary-written": "a segment's bytes are in a temporary file, not forced to disk",
    "file.renamed": "a segment file has its final name; nobody names it yet",
    "append.decided": "inside the append transaction, before COMMIT",
    "append.committed": "the append transaction is durable; the caller has not been told",
    "seal.file-written": "a sealed segment file exists; the transaction that swaps it in has not begun",
    "seal.committed": "the tail has been swapped for the sealed file; the Delta table does not know",
    "merge.file-written": "a merged segment file exists; the transaction that swaps it in has not begun",
    "merge.committed": "small segments have been swapped for the merged file; the Delta table does not know",
    "retention.decided": "inside the transaction that moves log start offsets, before COMMIT",
    "retention.committed": "what retention dropped has left the metadata; the Delta table does not know",
    "clean_up.write-ids-expired": "expired write ids are gone; nothing that was written under them has been deleted",
    "clean_up.retired-deleted": "retired files are deleted; their rows are still there",
    "clean_up.retired-forgotten": "the rows of deleted files are gone",
    "clean_up.topic-deleted": "a deleted topic's folder is gone from the log dirs; its row is still there",
    "clean_up.orphans-found": "orphans are known; none of these has been deleted",
    "compact.file-written": "a compacted segment file exists; the transaction that swaps it in has not begun",
    "compact.swapped": "segments have been swapped for their compacted file; the rest of the pass has not been done",
    "compact.before-noted": "a pass of compaction is all swapped in; table compaction does not know",
    "mirror.files-written": "a mirror's files are in the target's log dirs; their append has not begun",
    "erase.sealed": "tails have been sealed before an erase; nothing has been erased",
    "erase.file-written": "the file that takes a segment's place without the erased records exists; nobody names it",
    "erase.swapped": "a segment without the erased records is in the log; others may still hold some",
    "erase.published": "nothing in the log holds an erased record; the files that do are retired",
    "erase.marked": "the retired files of a purge are due; none has been deleted",
    "transaction.initialized": "a transactional id has its new epoch; its producer has not been told",
    "transaction.registered": "batches are pending; the producer has not been told",
    "transaction.aborted": "a transaction is aborted; the files that it had written are still there",
    "transaction.committed": "a transaction is committed; the producer has not been told",
    "group.changed": "the group has a new generation; nobody has computed its target",
    "group.target-decided": "inside the transaction that writes the members' targets, before COMMIT",
    "group.target-written": "the members' targets are durable; no member has been told",
    "group.given": "a heartbeat's changes are durable; the member has not been told",
    "copy.file-written": "a replica's copy of a segment has its final name; its log end offset has not moved",
    "copy.committed": "a replica's log end offset has moved over what it copied",
    "controller.elected": "inside the transaction that elects leaders, before COMMIT",
    "controller.lease-taken": "the controller's lease is durable; it has done nothing yet",
    "reassignment.begun": "the new replicas of a reassignment are in the metadata; nothing has been copied",
    "reassignment.switched": "a reassignment is done in the metadata; what it leaves behind has not been deleted",
    "broker.registered": "a served broker's lease is durable; it has done nothing yet",
    "coordinator.lease-taken": "the coordinator's lease is durable; it has done nothing yet",
    "stream.batch-begun": "inside foreachBatch, before the first output of a micro-batch is written",
    "stream.table-noted": "inside foreachBatch, the version of a table that the batch is to see is noted, not used",
    "stream.output-written": "an output of a micro-batch is durable; the next one, or Spark's commit, has not begun",
    "publish.before-commit": "a commit of the Delta table is noted in the metadata; the Delta log has not been written",
    "publish.committed": "the Delta commit is done; the metadata store has not recorded it",
    "publish.recorded": "the metadata store has recorded the Delta version",
}

_ENVIRONMENT_VARIABLE = "SPARK_LOG_FAILPOINT"
_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Die here with SIGKILL if the environment names this point. `name` is a key of `POINTS`."""
    wanted = os.environ.get(_ENVIRONMENT_VARIABLE)
    if wanted is None:
        return
    point, _, count = wanted.partition(":")
    assert name in POINTS and point in POINTS, f"no such failpoint: {name if name not in POINTS else point}"
    if point != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
