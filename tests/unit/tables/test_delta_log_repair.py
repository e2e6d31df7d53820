"""The repair of a Delta log with torn files."""

import errno
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_log.errors import StorageUnavailableError
from spark_log.tables.delta_log_repair import Repair, is_whole, plan_repair


def commit(version):
    return f"{version:020d}.json"


def checkpoint(version):
    return f"{version:020d}.checkpoint.parquet"


def files(*names, torn=()):
    return {name: name not in torn for name in names}


def test_intact_log_is_not_changed():
    assert not plan_repair(files(commit(0), commit(1), checkpoint(1), "_last_checkpoint"))


def test_torn_commit_becomes_empty_and_loses_its_checksums():
    names = [commit(0), commit(1), f".{commit(1)}.crc", f"{1:020d}.crc", commit(2), f".{commit(2)}.crc"]
    deleted = (f".{commit(1)}.crc", f"{1:020d}.crc")
    assert plan_repair(files(*names, torn=[commit(1)])) == Repair(deleted, (commit(1),))


def test_torn_checkpoint_is_deleted_with_its_hint():
    names = [commit(0), commit(1), checkpoint(1), "_last_checkpoint", commit(2)]
    assert plan_repair(files(*names, torn=[checkpoint(1)])) == Repair(("_last_checkpoint", checkpoint(1)))


def test_hint_without_its_checkpoint_is_deleted():
    names = [commit(0), commit(1), "_last_checkpoint", "._last_checkpoint.crc"]
    plan = plan_repair(files(*names, torn=["_last_checkpoint"]))
    assert plan == Repair(("._last_checkpoint.crc", "_last_checkpoint"))


def test_torn_commit_below_a_checkpoint_is_not_changed():
    names = [commit(0), commit(1), checkpoint(1), commit(2)]
    assert plan_repair(files(*names, torn=[commit(0), commit(2)])) == Repair(empty=(commit(2),))


UNREADABLE = [
    ([commit(0), commit(1)], [commit(0)]),
    ([commit(5), checkpoint(5), "_last_checkpoint", commit(6)], [checkpoint(5)]),
    ([commit(0), commit(1), commit(3)], [commit(1)]),
    ([commit(1), checkpoint(1), commit(3)], [commit(3)]),
    ([commit(1), f".{commit(1)}.crc", commit(2)], []),
]


@pytest.mark.parametrize(("names", "torn"), UNREADABLE)
def test_unreadable_log_is_deleted_with_torn_files_last(names, torn):
    plan = plan_repair(files(*names, torn=torn))
    assert set(plan.delete) == set(names)
    assert not plan.empty
    assert list(plan.delete[len(names) - len(torn) :]) == torn


@pytest.mark.parametrize(("names", "torn"), UNREADABLE)
def test_interrupted_deletion_is_continued(names, torn):
    done = plan_repair(files(*names, torn=torn)).delete
    for step in range(1, len(done)):
        left = [name for name in names if name not in done[:step]]
        assert plan_repair(files(*left, torn=[name for name in torn if name in left])) == Repair(done[step:])


ACTIONS = b'{"protocol":{}}\n{"metaData":{}}\n{"add":{}}\n'


@pytest.mark.parametrize(
    ("name", "content", "whole"),
    [
        (commit(0), ACTIONS, True),
        (commit(0), b'{"protocol":{}}\n', False),
        (commit(1), b'{"add":{}}\n', True),
        (commit(1), b"", False),
        (commit(1), bytes(10), False),
        (commit(1), b'{"add":', False),
        ("_last_checkpoint", b'{"version":1}', True),
        ("_last_checkpoint", b'{"version":2}', False),
        ("_last_checkpoint", b"", False),
        (f".{commit(1)}.crc", b"", True),
    ],
)
def test_torn_file_is_detected_by_its_bytes(name, content, whole):
    assert is_whole(name, content, [commit(0), commit(1), checkpoint(1)]) == whole


def parquet():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"txn": [json.dumps({"version": n}) for n in range(1000)]}), sink)
    return sink.getvalue().to_pybytes()


def test_checkpoint_with_bad_bytes_is_torn():
    content = parquet()
    assert is_whole(checkpoint(1), content, [])
    for torn in (b"", bytes(len(content)), content[:-100], bytes(500) + content[500:]):
        assert not is_whole(checkpoint(1), torn, [])


@pytest.mark.parametrize("error", [pa.ArrowMemoryError("no memory"), OSError(errno.EIO, "Input/output error")])
def test_checkpoint_that_cannot_be_read_is_not_torn(error, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr(pq, "read_table", fail)
    with pytest.raises((MemoryError, StorageUnavailableError)):
        is_whole(checkpoint(1), parquet(), [])
