"""After a failover, an old primary may still answer, and does not know the files of the new one. So files are deleted
only by decisions that were read with `Store.read_as_primary`, or for a reason that no metadata store can change.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "spark_log"
DELETIONS = {"delete", "delete_folder", "delete_empty_folder"}
BARRIER = {"read_as_primary", "decide"}

DECIDED = {
    "maintenance/removal/orphans.py:_delete_in": "_delete_in",
    "maintenance/removal/orphans.py:_delete_unknown": "_delete_unknown",
    "maintenance/removal/retired_file_clean_up.py:delete_retired_files": "delete_retired_files",
    "maintenance/removal/retired_file_clean_up.py:delete_left_copies": "delete_left_copies",
    "maintenance/removal/retired_file_clean_up.py:_delete_folder": "delete_retired_topics",
    "log/partitions/retired_replicas.py:_delete_files": "_delete_files",
    "maintenance/erase/purge.py:_delete_of_previous_topics": "_live_folders",
    "log/append/failed_append_files.py:_delete": "settle",
}
"""Function that deletes, and the function of the same module that reads the decision from the primary."""

NOT_FROM_METADATA = {
    "spark/datasource/write/task_writer.py:abort": "files of this attempt, which no other process knows",
    "maintenance/rewrite/segment_rewrite.py:discard": "a file of this process, whose swap was not committed",
    "tables/delta_log_repair.py:repair": "a torn Delta log, read from the log dir",
    "tables/log_clean_up.py:clean_up": "old versions of a Delta log, read from the log dir",
    "tables/iceberg/metadata_files.py:delete_versions": "the metadata files of a table that a catalog has now",
    "tables/iceberg/clean_up.py:clean_up": "old metadata of an Iceberg table, read from the log dir",
    "tables/current/clean_up.py:clean_up": "old deletion vectors, read from the log dir",
    "tables/unfinished_files.py:delete_unfinished": "temporary files, a day after their last write",
    "tables/verification.py:rebuild": "the metadata of a table that is made anew",
    "spark/streams/micro_batch.py:forget": "state of a query",
    "cluster/log_dir.py:try_writing": "the file that it has just written",
    "cluster/log_dir.py:delete_marker": "the marker of a store that has left the cluster",
}
"""Function that deletes, and why no decision of the metadata is needed. Also, by
`failed_append_files.delete_files`: files of batches that an append has refused, because only this append has written
them, and those of batches that a transaction has dropped, because it was committed.
"""

MECHANISM = {
    "maintenance/removal/cleanable_log_dirs.py:delete",
    "maintenance/removal/cleanable_log_dirs.py:delete_folder",
    "maintenance/removal/cleanable_log_dirs.py:delete_empty_folder",
}
"""Methods of the class through which clean-up deletes."""


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def called(function):
    """The names of the methods that the function calls, its inner functions included."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}


def deletes_files(call):
    """Whether a call deletes a file: rows are deleted by `.delete()`, or by a function of a connection."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in DELETIONS and call.args):
        return False
    first = call.args[0]
    return not (isinstance(first, ast.Name) and first.id == "connection")


def deleting_functions():
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        for function in functions(ast.parse(text)) if "delete" in text else ():
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            source = ast.unparse(function)
            if any(map(deletes_files, calls)) or (".map(" in source and "log_dir.delete" in source):
                found.add(f"{path.relative_to(ROOT)}:{function.name}")
    return found


def test_every_function_that_deletes_files_is_known():
    assert deleting_functions() == {*DECIDED, *NOT_FROM_METADATA, *MECHANISM}


@pytest.mark.parametrize("place", DECIDED)
def test_the_decision_is_read_from_the_primary(place):
    module, _, _ = place.partition(":")
    deciding = [f for f in functions(ast.parse((ROOT / module).read_text())) if f.name == DECIDED[place]]
    assert deciding and all(called(function) & BARRIER for function in deciding)


def test_publication_removes_files_by_a_decision_of_the_primary():
    changing = [
        ast.unparse(function)
        for module in ("publication", "unopened_publication")
        for function in functions(ast.parse((ROOT / f"tables/{module}.py").read_text()))
        if "find_changes(" in ast.unparse(function) and function.name not in ("read", "check_publication")
    ]
    assert len(changing) == 2
    assert all("store.read_as_primary(" in function and "store.read(" not in function for function in changing)
