"""A log dir that does not answer (a hanging mount) delays neither the beats of the metadata store, nor the acceptance
of its promotion.
"""

import threading
from concurrent.futures import wait

import pytest

from spark_log import process
from spark_log.cluster import promotion as acceptance
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.settings import alter_settings
from spark_log.errors import StoreChangedError
from spark_log.metadata import tables as t
from spark_log.metadata.connections import server_identity
from tests.support.waiting import LIMIT_S, wait_until

ANSWER_S = 0.2


@pytest.fixture
def cluster(postgres_server, tmp_path, monkeypatch):
    """A cluster with the log dirs `good` and `bad`."""
    monkeypatch.setattr(acceptance, "ANSWER_S_MAX", ANSWER_S)
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "good")) as opened:
        alter_settings(opened, {"store.promotion.accept": "synchronous"})
        opened.add_log_dir(1, str(tmp_path / "bad"))
        yield opened


@pytest.fixture
def hanging(monkeypatch):
    """The folders whose log dirs hang, until the test ends, and the calls that hang or have hung. The time limit for
    answers begins when all calls hang that are to do so, and the other log dirs have answered, however slow they are.
    """
    folders, calls, release = set(), [], threading.Event()
    asked, answers = set(), acceptance._answers

    def is_to_hang(uri):
        return any(uri.endswith(f"/{name}") for name in folders)

    def in_time(requests):
        asked.update(request for info, request in requests.items() if is_to_hang(info.uri))
        wait_until(lambda: len(calls) == len(asked))
        wait(set(requests.values()) - asked, LIMIT_S)
        return answers(requests)

    monkeypatch.setattr(acceptance, "_answers", in_time)

    def hangs(method):
        def call(self, *arguments):
            if is_to_hang(self.uri):
                calls.append(method.__name__)
                assert release.wait(60), "the caller waited for it"
            return method(self, *arguments)

        return call

    with monkeypatch.context() as patches:
        for method in (LogDir.replace, LogDir.verify):
            patches.setattr(LogDir, method.__name__, hangs(method))
        yield folders, calls
        release.set()
        wait_until(lambda: not process._asking)


def beat(cluster):
    acceptance.beat(cluster, cluster.store.settings, unfenced)


def be_promoted(cluster):
    """As after a failover from an earlier timeline, with synchronous replication."""
    change = t.cluster.update().values(timeline=0, synchronous=True)
    cluster.store.transact(lambda connection: connection.execute(change))


def last_beat(cluster):
    return cluster.store.read(server_identity.last_beat).number


def test_beats_go_on_and_one_thread_waits(cluster, hanging, tmp_path):
    folders, calls = hanging
    beat(cluster)
    folders.add("bad")
    for _ in range(3):
        beat(cluster)
    assert last_beat(cluster) == 4
    assert [(tmp_path / name / "store-0.beat").read_text() for name in ("good", "bad")] == ["4", "1"]
    assert calls == ["replace"], "asked once"


def test_a_promotion_is_accepted_by_the_log_dirs_that_answer(cluster, hanging):
    folders, calls = hanging
    beat(cluster)
    folders.add("bad")
    be_promoted(cluster)
    beat(cluster)
    assert cluster.store.read(server_identity.promoted_at_ms) is not None
    assert calls == ["verify", "replace"]


def test_a_promotion_is_refused_if_no_log_dir_answers(cluster, hanging):
    folders, calls = hanging
    beat(cluster)
    folders |= {"good", "bad"}
    be_promoted(cluster)
    for _ in range(3):
        with pytest.raises(StoreChangedError, match="no log dir answers"):
            beat(cluster)
    assert calls == ["verify"] * 2, "each is asked once"
