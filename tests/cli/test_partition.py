"""`spark-log partition …` and what `topic describe` says of replicas, as their users meet them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Lease
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.replicas import replica_moves
from tests.cli.conftest import ok, run
from tests.support.records import read_all
from tests.support.replicas import add_brokers, assigned, bring_back, take_away, topic_on
from tests.support.stores import change
from tests.support.topics import append


@pytest.fixture
def brokers(cluster: Path, tmp_path: Path) -> Iterator[Cluster]:
    """Brokers 1 to 4 of the cluster in `cluster`."""
    with Cluster.open(str(cluster)) as opened:
        add_brokers(opened, tmp_path, 2, 3, 4)
        yield opened


@pytest.fixture
def log(brokers: Cluster) -> Iterator[ClientLog]:
    log = ClientLog(brokers)
    yield log
    log.close()


def test_replicas_move_to_other_brokers(cluster: Path, brokers: Cluster, log: ClientLog) -> None:
    topic = topic_on(brokers, "t", [[1, 2], [2, 1]], inline_max_bytes="0")
    for value in ("a", "b", "c"):
        append(log, "t", value)
    printed = run("partition", "reassign", "--to-brokers", "3,4", "--throttle", "50MB", cluster=cluster)
    assert printed.exit_code == 0, printed.output
    assert "Moving 2 partitions, " in printed.stderr
    assert printed.stdout == "Moved 2 partitions.\n"
    assert sorted(map(sorted, assigned(brokers, "t"))) == [[3, 4], [3, 4]]
    assert {ar[0] for ar in assigned(brokers, "t")} == {3, 4}
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]
    again = ok("partition", "reassign", "--to-brokers", "3,4", cluster=cluster)
    assert again == "All replicas are in place already.\n"
    assert ok("partition", "reassign", cluster=cluster) == "No reassignment is in progress.\n"


def test_a_plan_is_printed_and_executed(cluster: Path, brokers: Cluster, tmp_path: Path) -> None:
    topic_on(brokers, "t", [[1], [1]])
    topic_on(brokers, "other", [[1]])
    shown = run("partition", "reassign", "--to-brokers", "2,3", "--topic", "t", "--dry-run", cluster=cluster)
    plan = json.loads(shown.stdout)
    assert plan["version"] == 1
    assert [(p["topic"], p["partition"], p["log_dirs"]) for p in plan["partitions"]] == [
        ("t", 0, ["any"]),
        ("t", 1, ["any"]),
    ]
    assert "2 partitions, 0 B to copy" in shown.stderr
    assert assigned(brokers, "t") == [[1], [1]], "nothing has moved"
    file = tmp_path / "plan.json"
    file.write_text(shown.stdout)
    assert json.loads(ok("partition", "reassign", "--plan", str(file), "--dry-run", cluster=cluster)) == plan
    moved = json.loads(ok("partition", "reassign", "--plan", str(file), "--json", cluster=cluster))
    wanted = [entry["replicas"] for entry in plan["partitions"]]
    assert [entry["replicas"] for entry in moved] == assigned(brokers, "t") == wanted
    assert assigned(brokers, "other") == [[1]]


def test_reassign_changes_the_replication_factor(cluster: Path, brokers: Cluster) -> None:
    topic_on(brokers, "t", [[1], [2]])
    ok("partition", "reassign", "--to-brokers", "1,2,3", "-r", "3", cluster=cluster)
    assert [ar[0] for ar in assigned(brokers, "t")] == [1, 2]
    assert [sorted(ar) for ar in assigned(brokers, "t")] == [[1, 2, 3], [1, 2, 3]]


def test_status_cancel_and_continue_a_reassignment(cluster: Path, brokers: Cluster, log: ClientLog) -> None:
    topic_on(brokers, "t", [[1, 2], [1, 2]], inline_max_bytes="0")
    append(log, "t", "a")
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    begin_reassignments(brokers, {first: [2, 3], second: [3, 4]}, 1_000_000)
    status = json.loads(ok("partition", "reassign", "--status", "--json", cluster=cluster))
    assert [(s["partition"], s["target"], s["original"]) for s in status] == [(0, [2, 3], [1, 2]), (1, [3, 4], [1, 2])]
    assert status[0]["bytes_left"] > 0
    assert status[0]["throttle_bytes_per_s"] == 1_000_000
    assert "t-0" in ok("partition", "reassign", "--status", cluster=cluster)
    begin_reassignments(brokers, {second: None})
    assert ok("partition", "reassign", cluster=cluster) == "Moved 1 partition.\n"
    assert assigned(brokers, "t") == [[2, 3], [1, 2]]
    begin_reassignments(brokers, {second: [3, 4]})
    cancelled = ok("partition", "reassign", "--cancel", "--topic", "t", cluster=cluster)
    assert cancelled == "Cancelled the reassignment of 1 partition.\n"
    assert assigned(brokers, "t") == [[2, 3], [1, 2]]
    assert ok("partition", "reassign", "--status", cluster=cluster) == "No reassignment is in progress.\n"


def test_partitions_of_a_reassignment_cancelled_elsewhere_are_named(
    cluster: Path, brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_on(brokers, "t", [[1], [1]])
    run_all = replica_moves.run_reassignments

    def cancel_one(*arguments: Any) -> None:
        begin_reassignments(brokers, {TopicPartition("t", 1): None})
        run_all(*arguments)

    monkeypatch.setattr(replica_moves, "run_reassignments", cancel_one)
    for more in ((), ("--json",)):
        begin_reassignments(brokers, {TopicPartition("t", 0): [2, 3], TopicPartition("t", 1): [2, 3]})
        moved = run("partition", "reassign", *more, cluster=cluster)
        assert moved.exit_code == 1
        assert moved.stdout == "Moved 1 partition.\n" or [each["replicas"] for each in json.loads(moved.stdout)] == [
            [2, 3], [1],
        ]  # fmt: skip
        assert "spark-log: partition t-1 is on brokers 1, not on 2,3:" in moved.stderr and "t-0" not in moved.stderr


def test_preferred_leaders_are_elected(cluster: Path, brokers: Cluster) -> None:
    topic_on(brokers, "t", [[1, 2], [2, 1]])
    change(brokers, t.partition.update().values(leader=2))
    assert "2 (preferred 1)" in ok("topic", "describe", "t", cluster=cluster)
    report = json.loads(ok("partition", "balance", "--json", cluster=cluster))
    assert [broker["imbalance_percent"] for broker in report["brokers"]] == [100.0, 0.0, 0.0, 0.0]
    assert report["brokers"][0]["led_elsewhere"] == [{"topic": "t", "partition": 0}]
    assert "broker 1 should lead t-0" in ok("partition", "balance", cluster=cluster)
    printed = ok("partition", "elect", "--topic", "t", cluster=cluster)
    assert printed == "1 partition with a new leader, 1 needed none.\nt-0: elected\n"
    shown = json.loads(ok("partition", "elect", "--all", "--json", cluster=cluster))
    assert [row["elected"] for row in shown] == [False, False]


def test_offline_partitions_are_shown_and_elected_uncleanly(cluster: Path, brokers: Cluster, log: ClientLog) -> None:
    topic_on(brokers, "t", [[2, 3], [4]], inline_max_bytes="0")
    take_away(brokers, 3)
    append(log, "t", "a", "b")
    take_away(brokers, 2)
    described = ok("topic", "describe", "t", cluster=cluster)
    assert "OFFLINE, no in-sync replica is alive: 0" in described
    [shown] = json.loads(ok("topic", "describe", "t", "--json", cluster=cluster))
    part = shown["partitions"][0]
    assert (part["leader"], part["offline"], part["preferred_leader"], part["isr"], part["osr"], part["dead"]) == (
        None, True, 2, [2], [3], [2, 3],
    )  # fmt: skip
    assert part["lag"] == {"2": 0, "3": 2}
    assert ok("partition", "truncations", cluster=cluster) == "No election has truncated a partition.\n"

    refused = run("partition", "elect", "--topic", "t", "-p", "0", cluster=cluster)
    assert (refused.exit_code, refused.stderr) == (
        1, "spark-log: partition t-0: its preferred leader, broker 2, is not alive\n",
    )  # fmt: skip
    refused = run("partition", "elect", "--unclean", "--all", "--yes", cluster=cluster)
    assert refused.exit_code == 1
    assert "t-0: none of its replicas is alive" in refused.stderr
    bring_back(brokers, 3)
    asked = run("partition", "elect", "--unclean", "--all", stdin="n\n", cluster=cluster)
    assert (asked.exit_code, asked.stderr.splitlines()[0]) == (
        1,
        "t-0: the election removes the records from offset 0 to 1.",
    )
    elected = ok("partition", "elect", "--unclean", "--all", "--yes", cluster=cluster)
    assert elected == "1 partition with a new leader, 1 needed none.\nt-0: elected\n"
    [loss] = json.loads(ok("partition", "truncations", "--json", cluster=cluster))
    assert (loss["topic"], loss["partition"], loss["start_offset"], loss["end_offset"]) == ("t", 0, 0, 2)
    assert (loss["record_count"], loss["seen_count"], loss["unclean"]) == (2, 2, True)
    assert "2 records lost in all." in ok("partition", "truncations", "--topic", "t", cluster=cluster)


def test_balance_names_the_largest_partitions(cluster: Path, brokers: Cluster, log: ClientLog) -> None:
    topic_on(brokers, "t", [[1], [2], [3], [4]], inline_max_bytes="0")
    append(log, "t", *(f"{number * 2_654_435_761 % 2**32:x}" for number in range(5_000)), partition=2)
    append(log, "t", "y", partition=0)
    shown = ok("partition", "balance", cluster=cluster)
    assert "broker 3 is full of t-2" in shown
    report = json.loads(ok("partition", "balance", "--json", cluster=cluster))
    assert [skew["partition"] for skew in report["skewed"]] == [2]
    assert report["skewed"][0]["records"] == 5_000
    third = report["brokers"][2]
    assert third["load"]["records"] == third["log_dirs"][0]["records"] == 5_000
    assert third["largest"][0]["partition"] == 2
    assert third["bytes_deviation_percent"] > 100


def test_reassign_waits_for_the_controller_of_another_process(cluster: Path, brokers: Cluster) -> None:
    topic_on(brokers, "t", [[1]])
    begin_reassignments(brokers, {TopicPartition("t", 0): [2]})
    other = Lease(brokers.store, "controller", 3_000)
    assert other.take_or_renew()
    done = run("partition", "reassign", cluster=cluster)  # until the lease has run out: its holder does nothing
    assert (done.exit_code, done.stdout) == (0, "Moved 1 partition.\n")
    epoch = other.epoch
    assert other.take_or_renew()
    assert other.epoch == (epoch or 0) + 2, "a term of the command's lay in between"


def test_wrong_usage_names_the_option(cluster: Path, brokers: Cluster, tmp_path: Path) -> None:
    topic_on(brokers, "t", [[1, 2]])
    reassign = ("partition", "reassign")
    for usage, message in (
        (("partition", "elect"), "either --topic or --all"),
        (("partition", "elect", "--all", "--topic", "t"), "either --topic or --all"),
        (("partition", "elect", "--all", "-p", "1"), "one --topic"),
        ((*reassign, "--to-brokers", "1,x"), "'1,x'"),
        ((*reassign, "--to-brokers", "1", "--cancel"), "cannot be combined"),
        ((*reassign, "--plan", "x", "--topic", "t"), "cannot be combined"),
        ((*reassign, "--dry-run"), "--to-brokers"),
        ((*reassign, "--throttle", "5MB"), "--to-brokers"),
        ((*reassign, "--to-brokers", "1,2", "--throttle", "fast"), "'fast'"),
        ((*reassign, "--to-brokers", "1,2", "--throttle", "0"), "'0'"),
    ):
        failed = run(*usage, cluster=cluster)
        assert (failed.exit_code, message in failed.output) == (2, True), (usage, failed.output)
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}')
    for arguments, message in (
        ((*reassign, "--to-brokers", "1,9"), "--to-brokers: 9 is not one of the brokers 1, 2, 3, 4"),
        ((*reassign, "--to-brokers", "3,3"), "--to-brokers: 3 is given twice"),
        ((*reassign, "--to-brokers", "3"), "brokers: t-0 needs 2 of them, got [3]"),
        ((*reassign, "--to-brokers", "3,4", "--topic", "nope"), "topic 'nope': unknown topic or partition"),
        ((*reassign, "--plan", str(plan)), "partitions[0].replicas: expected distinct broker ids"),
        ((*reassign, "--plan", str(tmp_path / "none.json")), "none.json"),
        (("partition", "elect", "--topic", "t", "-p", "7"), "partition t-7: unknown topic or partition"),
        (("partition", "truncations", "--topic", "nope"), "topic 'nope'"),
    ):
        failed = run(*arguments, cluster=cluster)
        assert failed.exit_code == 1, failed.output
        [line] = [line for line in failed.stderr.splitlines() if line.startswith("spark-log: ")]
        assert message in line
    assert assigned(brokers, "t") == [[1, 2]]
