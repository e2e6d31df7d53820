"""`spark-log share …` and `spark-log group …` on share groups, as their users meet them."""

import json
from pathlib import Path

import pytest

from spark_log.clients.admin.audit import read_changes
from spark_log.cluster.cluster import Cluster
from spark_log.groups.share.rules import AcknowledgeType
from tests.cli.conftest import ok, run
from tests.support.share_members import ShareMember


@pytest.fixture
def workers(events: Path) -> Path:
    """Group workers has acquired b and c of partition 0, delayed a, and d is next; its member has left."""
    ok("share", "config", "workers", "--set", "share.auto.offset.reset=earliest", cluster=events)
    ok("produce", "events", "-p", "0", stdin="a\nb\nc\nd\n", cluster=events)
    with Cluster.open(str(events)) as opened:
        member = ShareMember(opened, ["events"])
        member.acknowledge(member.poll(1), AcknowledgeType.RELEASE, delay_ms=60_000)
        member.poll(2)
        member.leave()
    return events


def test_configs_are_shown_and_set(events: Path) -> None:
    ok("share", "config", "g", "--set", "share.delivery.count.limit=3", cluster=events)
    shown = json.loads(ok("share", "config", "g", "--json", cluster=events))
    assert shown["share.delivery.count.limit"] == {"value": "3", "origin": "group"}
    assert shown["share.auto.offset.reset"] == {"value": "latest", "origin": "default"}
    wrong = run("share", "config", "g", "--set", "share.delivery.count.limit=99", cluster=events)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
    assert "allow 2 to 10" in wrong.stderr
    limit = "share.delivery.count.limit"
    both = run("share", "config", "g", "--set", f"{limit}=4", "--unset", limit, cluster=events)
    assert (both.exit_code, "also given with --set" in both.stderr) == (2, True)
    ok("share", "config", "g", "--unset", "share.delivery.count.limit", cluster=events)
    assert json.loads(ok("share", "config", "g", "--json", cluster=events)) == {
        **shown,
        "share.delivery.count.limit": {"value": "5", "origin": "default"},
    }


def test_a_share_group_is_listed_described_and_deleted(workers: Path) -> None:
    [listed] = json.loads(ok("group", "list", "--json", cluster=workers))
    assert (listed["type"], listed["state"], listed["lag"]) == ("share", "Empty", 4)
    described = json.loads(ok("group", "describe", "workers", "--json", cluster=workers))
    [part, _] = described["share_partitions"]
    names = ("start", "next", "in_flight", "available", "delayed", "archiving", "lag")
    assert [part[name] for name in names] == [1, 3, 2, 0, 1, 0, 4]
    assert "in flight" in ok("group", "describe", "workers", cluster=workers)
    ok("group", "delete", "workers", cluster=workers)
    assert ok("group", "list", cluster=workers) == "There is no group.\n"


def test_peek_acquires_nothing(workers: Path) -> None:
    for _ in range(2):
        shown = json.loads(ok("share", "peek", "workers", "--json", cluster=workers))
        assert [(row["offset"], row["state"], row["deliveries"], row["value"]) for row in shown] == [
            (0, "delayed", 1, "a"),
            (1, "acquired", 1, "b"),
            (2, "acquired", 1, "c"),
            (3, "next", 0, "d"),
        ]
    assert ok("share", "peek", "workers", "--topic", "events:1", cluster=workers) == (
        "Group workers has no record to show.\n"
    )
    assert "delayed" in ok("share", "peek", "workers", "--limit", "1", cluster=workers)


@pytest.mark.parametrize("command", ["share", "group"])
def test_reset_is_a_preview_without_execute(workers: Path, command: str) -> None:
    preview = run(command, "reset", "workers", "--to", "earliest", "--json", cluster=workers)
    assert [(row["start_offset"], row["new_offset"]) for row in json.loads(preview.stdout)] == [(1, 0), (0, 0)]
    assert preview.stderr == "Nothing is changed. To reset the group, add --execute.\n"
    [listed] = json.loads(ok("group", "list", "--json", cluster=workers))
    assert listed["lag"] == 4
    done = ok(command, "reset", "workers", "--to", "+1", "--topic", "events:0", "--execute", cluster=workers)
    assert done.endswith("Reset 1 partition of group workers.\n")
    [listed] = json.loads(ok("group", "list", "--json", cluster=workers))
    assert listed["lag"] == 2
    assert run("share", "reset", "workers", "--to", "soon", cluster=workers).exit_code == 2
    with Cluster.open(str(workers)) as opened:
        changes = [(change.action, change.source) for change in read_changes(opened, target="group workers")]
    assert changes == [("AlterShareGroupOffsets", "cli"), ("IncrementalAlterConfigs", "cli")]
