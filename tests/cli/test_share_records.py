"""`spark-log share consume` and `spark-log share redrive`, as their users meet them."""

import json
from pathlib import Path

import pytest

from spark_log.clients.admin.audit import read_changes
from spark_log.cluster.cluster import Cluster
from tests.cli.conftest import ok, run


@pytest.fixture
def jobs(cluster: Path) -> Path:
    """Topic jobs with records a, b, c, and group workers, which reads from the start; its letters go to dlq.jobs."""
    ok("topic", "create", "jobs", cluster=cluster)
    ok("topic", "create", "dlq.jobs", "--config", "errors.deadletterqueue.group.enable=true", cluster=cluster)
    ok(
        "share", "config", "workers", "--set", "share.auto.offset.reset=earliest",
        "--set", "errors.deadletterqueue.topic.name=dlq.jobs", cluster=cluster,
    )  # fmt: skip
    ok("produce", "jobs", stdin="a\nb\nc\n", cluster=cluster)
    return cluster


def consume(cluster: Path, *arguments: str) -> list[tuple[str, int]]:
    """The values and delivery counts of the records that the command prints."""
    printed = ok("share", "consume", "jobs", "--group", "workers", *arguments, "--json", cluster=cluster)
    return [(row["value"], row["delivery_count"]) for row in map(json.loads, printed.splitlines())]


def test_consumed_records_are_accepted_and_come_once(jobs: Path) -> None:
    assert consume(jobs, "--max-messages", "2") == [("a", 1), ("b", 1)]
    assert consume(jobs, "--timeout-ms", "300") == [("c", 1)]
    assert consume(jobs, "--timeout-ms", "0") == []
    ended = run("share", "consume", "jobs", "-g", "workers", "--timeout-ms", "0", cluster=jobs)
    assert (ended.stdout, ended.stderr) == ("", "0 records.\n")


def test_released_records_come_again_and_rejected_ones_are_dead_letters(jobs: Path) -> None:
    assert consume(jobs, "--max-messages", "1", "--release") == [("a", 1)]
    assert consume(jobs, "--max-messages", "1", "--reject") == [("a", 2)]
    assert consume(jobs, "--timeout-ms", "300") == [("b", 1), ("c", 1)]
    assert ok("consume", "dlq.jobs", "--values", cluster=jobs) == "a\n"


def test_letters_are_copied_back_and_the_change_is_recorded(jobs: Path) -> None:
    consume(jobs, "--max-messages", "2", "--reject")
    shown = ok("share", "redrive", "dlq.jobs", "--dry-run", cluster=jobs)
    assert shown.endswith("Would copy 2 letters.\n")
    copied = json.loads(ok("share", "redrive", "dlq.jobs", "--limit", "1", "--json", cluster=jobs))
    assert copied == {"copied": {"jobs": 1}, "missing": 0, "dry_run": False}
    assert ok("share", "redrive", "dlq.jobs", cluster=jobs).endswith("Copied 1 letter.\n")
    assert ok("share", "redrive", "dlq.jobs", cluster=jobs) == "Copied 0 letters.\n"
    assert ok("consume", "jobs", "--values", cluster=jobs).splitlines() == ["a", "b", "c", "a", "b"]
    with Cluster.open(str(jobs)) as opened:
        changes = read_changes(opened, target="topic dlq.jobs", action="RedriveDeadLetters")
    assert [change.outcome for change in changes] == ["succeeded"] * 3


def test_wrong_usage(jobs: Path) -> None:
    for arguments in (
        ("consume", "jobs"),
        ("consume", "jobs", "-g", "workers", "--release", "--reject"),
        ("consume", "jobs", "-g", "workers", "--values", "--json"),
        ("redrive", "dlq.jobs", "--to", "dlq.jobs"),
    ):
        assert run("share", *arguments, cluster=jobs).exit_code == 2, arguments
    for arguments in (("consume", "nowhere", "-g", "workers"), ("redrive", "nowhere")):
        refused = run("share", *arguments, cluster=jobs)
        assert (refused.exit_code, refused.stderr.count("'nowhere'")) == (1, 1)
