"""A Delta log torn by a power loss is repaired, also after a partial repair; an unreadable one is not changed."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import StorageUnavailableError
from spark_log.tables import publication_intent, unopened_publication
from tests.support.table_checks import FileTopic

pytestmark = pytest.mark.delta


def three_segments(folder):
    topic = FileTopic(folder)
    topic.append("a")
    topic.append("b")
    topic.append("x", partition=1)
    return topic


def without_older_commits(topic):
    """A checkpoint of the newest version, and only the commits after it, as the task delta leaves the log."""
    version = topic.delta.version()
    topic.delta.create_checkpoint()
    topic.append("after it")
    for older in range(version + 1):
        Path(topic.location, "_delta_log", f"{older:020d}.json").unlink()
    return Path(topic.location, "_delta_log", f"{version:020d}.checkpoint.parquet")


def test_an_unreadable_checkpoint_is_not_treated_as_torn(monkeypatch):
    nobody = 65534
    with tempfile.TemporaryDirectory() as folder:
        topic = FileTopic(Path(folder, "cluster"))
        topic.append("a")
        checkpoint = without_older_commits(topic)
        identity, files = topic.delta.metadata().id, sorted(os.listdir(checkpoint.parent))
        checkpoint.chmod(0)
        monkeypatch.setattr(unopened_publication, "opened", {})  # as in another process
        if os.geteuid() == 0:  # root may read every file
            for path in (Path(folder), *Path(folder).rglob("*")):
                os.chown(path, nobody, nobody)
            os.seteuid(nobody)
        try:
            with pytest.raises(StorageUnavailableError, match="Permission denied"):
                topic.publish()
        finally:
            if os.getuid() == 0:
                os.seteuid(0)
        assert sorted(os.listdir(checkpoint.parent)) == files
        checkpoint.chmod(0o600)
        topic.append("later")
        topic.is_whole()
        assert topic.delta.metadata().id == identity


class Killed(BaseException):
    """Raised instead of the next step, as if the process were killed there."""


def kill_at(step, patch):
    """The process that repairs a Delta log is killed at deletion or replacement number `step`."""
    steps = iter(range(step + 1))

    def counted(real):
        def do(log_dir, relative):
            if next(steps) == step:
                raise Killed
            return real(log_dir, relative)

        return do

    patch.setattr(LogDir, "delete", counted(LogDir.delete))
    patch.setattr(LogDir, "replace", counted(LogDir.replace))


def torn_first_commit(topic):
    Path(topic.location, "_delta_log", f"{0:020d}.json").write_bytes(bytes(200))


def torn_checkpoint(topic):
    version = topic.delta.version()
    topic.delta.create_checkpoint()
    topic.append("after it")
    Path(topic.location, "_delta_log", f"{version:020d}.checkpoint.parquet").write_bytes(bytes(4000))


def torn_checkpoint_without_older_commits(topic):
    without_older_commits(topic).write_bytes(bytes(4000))


def torn_checkpoint_and_last_commit(topic):
    version = topic.delta.version()
    topic.delta.create_checkpoint()
    with pytest.MonkeyPatch.context() as patch:  # the power failed before the commit was forced to disk, and recorded
        patch.setattr(publication_intent, "settle", lambda *_: None)
        topic.append("last")
    for name in (f"{topic.delta.version():020d}.json", f"{version:020d}.checkpoint.parquet"):
        Path(topic.location, "_delta_log", name).write_bytes(bytes(4000))


@pytest.mark.parametrize(
    "tear", [torn_first_commit, torn_checkpoint, torn_checkpoint_without_older_commits, torn_checkpoint_and_last_commit]
)
def test_the_next_publication_completes_a_repair_that_was_killed_at_any_step(tmp_path, tear, monkeypatch):
    folder, torn = tmp_path / "cluster", tmp_path / "torn"
    first = three_segments(folder)
    tear(first)
    shutil.copytree(folder, torn)
    first.close()
    for step in range(100):
        shutil.rmtree(folder)
        shutil.copytree(torn, folder)
        topic = FileTopic(folder)
        monkeypatch.setattr(unopened_publication, "opened", {})  # the power failure ended every process
        log = Path(topic.location, "_delta_log")
        before = {path.name: path.read_bytes() for path in log.iterdir() if path.is_file()}
        for name in before:
            (log / f".{name}.crc").touch()  # as Spark leaves them
        with pytest.MonkeyPatch.context() as patch:
            kill_at(step, patch)
            try:
                topic.publish()
                break  # the repair had fewer steps
            except Killed:
                pass
        topic.publish()
        topic.is_whole()
        for checksum in log.glob(".*.crc"):  # Spark would refuse the new file of that name
            name = checksum.name[1:-4]
            assert (log / name).read_bytes() == before[name]
        topic.close()
    topic.close()
    assert step > 1


def test_a_commit_in_doubt_is_forced_to_disk_before_it_is_recorded(tmp_path, monkeypatch):
    """Its publisher was killed before it forced it. If a power loss tore it later, streams would miss its records."""
    tables = {
        "delta.max.lag.ms": "-1",
        "retention.ms": "-1",
        "table.formats": "delta,iceberg",
        "table.current": "delta",
    }
    topic = FileTopic(tmp_path / "cluster", configs={"inline.max.bytes": "0"} | tables)
    topic.append("a")
    topic.publish()
    with monkeypatch.context() as patch:
        patch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: True)
        topic.append("b")
        patch.setattr(publication_intent, "settle", lambda *_: None)
        topic.publish()
    monkeypatch.setattr(unopened_publication, "opened", {})  # another process goes on
    folders = ("_delta_log", "_current/_delta_log", "metadata")
    commits = {str(max(Path(topic.location, folder).glob("*[0-9]*.json"))) for folder in folders}
    forced, real_fsync, real_settle = set(), os.fsync, publication_intent.settle

    def fsync(descriptor):
        forced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    def settle(connection, settled):
        recorded.append(commits & forced)
        real_settle(connection, settled)

    recorded = []
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(publication_intent, "settle", settle)
    topic.publish()
    assert recorded[-1] == commits and [len(each) for each in recorded] == [1, 2, 3]
    topic.is_whole()
    topic.close()
