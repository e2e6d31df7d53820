"""The mirror job: from SQLite to PostgreSQL with two replicas, until SIGTERM."""

import json

import pytest

from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.groups.committed_offsets import commit_offsets, committed_offsets
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.jobs import mirror
from tests.support.mirroring import everything, make_source
from tests.support.records import table
from tests.support.spark import run_job
from tests.support.table_checks import assert_replicas_are_whole
from tests.support.topics import append_to, make, stored


@pytest.mark.slow
def test_the_mirror_job_runs_until_sigterm_and_copies_every_record(spark, tmp_path, postgres_url, capsys):
    with (
        Cluster.init(str(tmp_path / "source")) as source,
        Cluster.init(postgres_url, log_dir=str(tmp_path / "d1")) as target,
    ):
        add_broker(target, 2, [str(tmp_path / "d2")])
        topic = make_source(source)
        here = TopicPartition("t", 0)
        commit_offsets(source.store, "readers", {here: 12, TopicPartition("t", 3): 0})
        arguments = ["--to-cluster", postgres_url, "--subscribe-pattern", "^t$", "--create-topics", "--groups"]
        arguments += ["--replication-factor", "2", "--max-offsets-per-trigger", "100"]
        log = ClientLog(source)
        before_append = []

        def shows_the_record_sent_while_it_runs(printed):
            seen = [json.loads(line) for line in printed.splitlines()]
            if before_append:
                return len(seen) > len(before_append)
            if seen and not seen[-1]["behind"]:
                before_append.extend(seen)
                log.append(topic, [Records(3, table("while it runs"))])
            return False

        arguments += ["--trigger", "100 milliseconds", "--json"]
        printed = run_job(
            spark, tmp_path / "source", "mirror", *arguments, until=shows_the_record_sent_while_it_runs
        ).out
        *events, summary = map(json.loads, printed.splitlines())
        assert len(events) > 2
        assert {event["event"] for event in events} == {"progress"}
        assert events[-1]["records"] == 1
        assert summary["records"] == sum(event["records"] for event in events) == len(everything(source))
        assert (summary["before"], summary["after"]["t"]["3"]) == ({"t": dict.fromkeys("0123", 0)}, 1)
        assert everything(target) == everything(source)
        assert_replicas_are_whole(target)
        assert committed_offsets(target.store, "readers") == {here: 12, TopicPartition("t", 3): 0}

        commit_offsets(source.store, "readers", {here: 5, TopicPartition("t", 1): 30})
        again = ["--cluster", str(tmp_path / "source"), "--to-cluster", postgres_url, "--subscribe", "t", "--groups"]
        assert mirror.main(again) == 0, "nothing new: it needs no Spark to say so"
        assert capsys.readouterr().out.startswith("mirror: 0 records")
        expected = {here: 12, TopicPartition("t", 1): 30, TopicPartition("t", 3): 0}
        assert committed_offsets(target.store, "readers") == expected, "never back"
        log.append(topic, [Records(3, table("not in the target"))])
        foreign = ClientLog(target)
        foreign.append(foreign.find_topic("t"), [Records(3, table("foreign"))])
        assert mirror.main(again) == 1
        assert capsys.readouterr().err.startswith("mirror: t-3: something else has written the offsets [1, 2)")
        foreign.close()
        log.close()


@pytest.mark.slow
def test_the_mirror_job_leaves_out_a_topic_whose_records_its_tasks_cannot_read(spark, tmp_path):
    with Cluster.init(str(tmp_path / "source")) as source, Cluster.init(str(tmp_path / "target")) as target:
        for name in ("a", "b", "c"):
            append_to(source, make(source, name, inline_max_bytes="0"), "x")
        [file] = (tmp_path / "source").rglob(f"{source.store.read(lambda c: find_topic(c, 'b')).folder}/**/*.parquet")
        file.unlink()
        arguments = ["--to-cluster", str(tmp_path / "target"), "--subscribe-pattern", ".", "--create-topics"]
        printed = run_job(spark, tmp_path / "source", "mirror", *arguments, exit_code=1)
        assert printed.err.count("topic 'b' is not mirrored: segment") == 1
        assert printed.err.rstrip().endswith("is missing")
        assert "mirror: 2 records" in printed.out
        assert {name: stored(target, name) for name in "abc"} == {"a": {0: ["x"]}, "b": {}, "c": {0: ["x"]}}
