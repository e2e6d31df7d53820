"""The pages of the console other than messages: their facts are those of the command line."""

import json

import pytest
from typer.testing import CliRunner

from spark_log import Consumer, Producer
from spark_log.cli.main import app
from spark_log.clients.admin.audit import record_change
from spark_log.cluster.lease import unfenced
from spark_log.console.app import table
from spark_log.console.paths import url
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.measurement import task_records
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.groups.share.administration import alter_group_configs, group_overrides
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.maintenance.coordinator.recorder import Recorder
from spark_log.maintenance.recorded_appends import append_records
from spark_log.metadata import tables as t
from tests.support.console import commit, running_console
from tests.support.share_members import ShareMember
from tests.support.topics import fill, make

pytestmark = pytest.mark.on_sqlite


def rows(console, path):
    facts = console.facts(path)
    return facts["listing"]["rows"]


def cli(cluster_address, *arguments):
    result = CliRunner().invoke(app, [*arguments, "--cluster", cluster_address, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# Facts ---------------------------------------------------------------------------------------------------------------


def test_topics_are_those_of_the_command_line_and_can_be_searched_and_sorted(console, cluster_address, topics, cluster):
    record_change(cluster, "ann", "x", "y", {}, "succeeded", "test")
    listed = {row["topic"]: row for row in cli(cluster_address, "topic", "list") if not row["topic"].startswith("__")}
    found = {row["topic"]: row for row in rows(console, "/topics")}
    assert found.keys() == listed.keys() == {"seen", "hidden"}
    for name, row in found.items():
        assert {key: row[key] for key in ("partitions", "records", "bytes", "segments")} == {
            key: listed[name][key] for key in ("partitions", "records", "bytes", "segments")
        }
    assert found["seen"]["rate"] is None, "there is no history"
    assert [row["topic"] for row in rows(console, "/topics?sort=-records")] == ["seen", "hidden"]
    assert [row["topic"] for row in rows(console, "/topics?q=EE")] == ["seen"]
    assert [row["topic"] for row in rows(console, "/topics?size=1&page=2")] == ["seen"]
    assert console.facts("/topics?size=1&page=9")["listing"]["page"] == 2
    assert "there is no column" in console.facts("/topics?sort=nothing", 400)["error"]
    assert "page" in console.facts("/topics?page=-1", 400)["error"]
    assert "size" in console.facts(f"/topics?size={'0' * 11}1000000", 400)["error"]
    assert "page" in console.facts(f"/topics?page={'0' * 5_000}1", 400)["error"]
    for column in ("isr", "replicas"):
        assert "there is no column" in console.facts(f"/topics/seen?sort={column}", 400)["error"]
    assert [row["topic"] for row in rows(console, "/topics?internal=1&q=__")] == ["__audit"]


def test_a_favourite_comes_first_without_a_script(console, topics):
    assert [row["topic"] for row in rows(console, "/topics")] == ["hidden", "seen"]
    assert console.change("/topics/seen/favourite", **{"from": "topics"}).headers["location"] == "/topics"
    assert [row["topic"] for row in rows(console, "/topics?sort=-topic")] == ["seen", "hidden"]
    assert [row["topic"] for row in rows(console, "/topics")] == ["seen", "hidden"]
    assert "Remove seen from favourites" in console.page("/topics")
    console.change("/topics/seen/favourite")
    assert [row["topic"] for row in rows(console, "/topics")] == ["hidden", "seen"]


def test_a_topic_shows_what_describe_shows(console, cluster_address, topics, cluster):
    commit(cluster, seen_0=2)
    [described] = cli(cluster_address, "topic", "describe", "seen")
    facts = console.facts("/topics/seen")
    for row, part in zip(facts["partitions"]["rows"], described["partitions"], strict=True):
        same = ("partition", "leader", "isr", "high_watermark", "log_end_offset", "records", "bytes", "segments")
        assert {key: row[key] for key in same} == {key: part[key] for key in same}
        assert row["replicas"] == part["replicas"]
    assert facts["skew"]["partition"] == 0 and facts["skew"]["ratio"] > 1
    assert facts["totals"]["records"] == 6
    assert facts["groups"] == [{"group": "readers", "members": 0, "partitions": 1, "lag": 3, "lag_s": pytest.approx(
        facts["groups"][0]["lag_s"])}]  # fmt: skip
    assert [table["location"] for table in facts["tables"]] == [table["location"] for table in described["tables"]]
    retention = next(row for row in facts["configs"] if row["name"] == "retention.ms")
    assert (retention["value"], retention["is_set"]) == ("604800000", False)
    page = console.page("/topics/seen")
    assert 'href="/groups/readers"' in page and "preferred" not in page


def test_typed_columns_and_versions_of_the_subject_are_shown(console, cluster):
    make(cluster, "typed", 1, value_format="json", value_schema="item STRING, price DOUBLE")
    [schema] = console.facts("/topics/typed")["schemas"]
    assert schema["columns"][:2] == [
        {"name": "record.item", "type": "STRING", "note": ""},
        {"name": "record.price", "type": "DOUBLE", "note": ""},
    ]
    assert "record.price" in console.page("/topics/typed")


def test_lag_of_a_group_is_that_of_group_describe(console, cluster, cluster_address, topics):
    commit(cluster, seen_0=2, seen_1=0, hidden_0=1)
    described = cli(cluster_address, "group", "describe", "readers")
    facts = console.facts("/groups/readers")
    same = ("topic", "partition", "committed", "log_start", "log_end", "lag", "member")
    assert [{key: row[key] for key in same} for row in facts["partitions"]["rows"]] == [
        {key: row[key] for key in same} for row in described["partitions"]
    ]
    assert facts["lag"] == sum(row["lag"] for row in described["partitions"]) == 5
    assert all(row["lag_s"] > 0 for row in facts["partitions"]["rows"])
    [listed] = cli(cluster_address, "group", "list")
    [row] = rows(console, "/groups")
    assert (row["group"], row["state"], row["lag"]) == ("readers", listed["state"], listed["lag"])


@pytest.fixture
def workers(cluster, topics):
    """A member of share group workers, which reads topic seen: it has acquired 2 of 5 records, and delayed 1."""
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    member = ShareMember(cluster, ["seen"])
    acquired = member.poll(1)
    member.acknowledge(acquired, AcknowledgeType.RELEASE, delay_ms=60_000)
    member.poll(2)
    return member


def test_a_share_group_has_its_partitions_and_configs(console, cluster_address, workers):
    [row] = [row for row in rows(console, "/groups") if row["group"] == "workers"]
    [listed] = cli(cluster_address, "group", "list")
    assert (row["state"], row["members"], row["lag"]) == ("Stable", 1, listed["lag"])
    facts = console.facts("/groups/workers")
    described = cli(cluster_address, "group", "describe", "workers")["share_partitions"]
    names = ("topic", "partition", "start", "next", "in_flight", "available", "delayed", "archiving", "lag")
    shown = [[row[name] for name in names] for row in facts["share"]["rows"]]
    assert shown == [[row[name] for name in names] for row in described]
    assert facts["partitions"]["rows"] == []
    assert sum(row["in_flight"] for row in facts["share"]["rows"]) == 2
    [config] = [row for row in facts["configs"] if row["name"] == "share.auto.offset.reset"]
    assert (config["value"], config["origin"]) == ("earliest", "group")
    page = console.page("/groups/workers")
    assert "In flight" in page and "share.auto.offset.reset" in page
    assert "workers" in console.page("/topics/seen") and "workers" in console.page("/")


def test_a_share_group_is_reset_as_previewed_and_deleted(console, cluster, workers):
    query = "to=latest&topic=seen&partitions=0"
    preview = console.facts(f"/groups/workers/reset?{query}")
    assert preview["members"] == 1
    assert console.change("/groups/workers/reset", offsets=preview["offsets"]).status_code == 400
    workers.leave()
    wrong = json.dumps([[*row[:2], row[2] + 1, row[3]] for row in json.loads(preview["offsets"])])
    assert "look again" in console.change("/groups/workers/reset", offsets=wrong).text
    outside = json.dumps([[*row[:3], 99] for row in json.loads(preview["offsets"])])
    assert "outside the log" in console.change("/groups/workers/reset", offsets=outside).text
    assert console.change("/groups/workers/reset", offsets=preview["offsets"]).status_code == 303
    first = console.facts("/groups/workers")["share"]["rows"][0]
    assert (first["start"], first["lag"], first["in_flight"]) == (first["log_end"], 0, 0)
    form = {"config": "share.delivery.count.limit", "value": "3"}
    assert console.change("/groups/workers/configs", **form).status_code == 303
    assert console.change("/groups/workers/configs", **{**form, "value": "99"}).status_code == 400
    assert console.change("/groups/workers/configs", **form, reset="1").status_code == 303
    assert group_overrides(cluster.store, "workers") == {"share.auto.offset.reset": "earliest"}
    assert console.change("/groups/workers/delete-offsets", topic="seen").status_code == 303
    assert console.facts("/groups/workers")["share"]["rows"] == []
    assert console.change("/groups/workers/delete", confirm="workers").status_code == 303
    console.page("/groups/workers", 404)


def test_members_of_a_group_and_their_partitions_are_shown(console, cluster_address, topics):
    settings = {"group_id": "g", "client_id": "reader", "enable_auto_commit": False}
    with Consumer("seen", cluster=cluster_address, **settings) as consumer:
        consumer.poll(timeout_ms=2000)
        [listed] = rows(console, "/groups")
        assert (listed["state"], listed["members"]) == ("Stable", 1)
        [member] = console.facts("/groups/g")["members"]
        assert (member["client_id"], member["assignment"]) == ("reader", ["seen-0", "seen-1", "seen-2"])
        assert "seen-0, seen-1, seen-2" in console.page("/groups/g")


def test_an_open_transaction_shows_what_it_wrote_and_when_it_hangs(console, cluster_address, cluster, topics):
    with Producer(cluster=cluster_address, transactional_id="t 1", transaction_timeout_ms=1000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("seen", b"x", partition=1).get(60)
        producer.send("hidden", b"x", partition=0).get(60)
        facts = console.facts("/transactions")
        [row] = facts["listing"]["rows"]
        assert (facts["open"], row["state"], row["batches"], row["records"]) == (1, "Ongoing", 2, 2)
        one = console.facts(url("/transactions/{id}", id="t 1"))
        assert [(each["topic"], each["partition"], each["records"]) for each in one["pending"]] == [
            ("hidden", 0, 1), ("seen", 1, 1),
        ]  # fmt: skip
        overdue = t.transaction.update().values(until_ms=1)
        cluster.store.transact(lambda connection: connection.execute(overdue))
        assert console.facts("/transactions")["hanging"] == 1
        assert "hanging" in console.page("/transactions")
        producer.abort_transaction()
    assert console.facts("/transactions?state=Ongoing")["listing"]["rows"] == []
    console.page("/transactions/unknown", 404)


def test_brokers_show_log_dirs_leaders_and_free_space(three_brokers):
    make(three_brokers, "t", 6)
    with running_console(three_brokers) as console:
        facts = console.facts("/brokers")
        assert [broker["alive"] for broker in facts["brokers"]] == [True] * 3
        assert sum(broker["leaders"] for broker in facts["brokers"]) == 6
        [log_dir] = facts["brokers"][0]["log_dirs"]
        assert log_dir["online"] and log_dir["replicas"] == facts["brokers"][0]["replicas"]
        assert facts["reassignments"] == 0 and "alive" in console.page("/brokers")


def test_runs_of_tasks_queries_and_throughput_come_from_the_history(console, cluster, log, topics):
    assert console.facts("/topics/seen/throughput")["times"] == []
    recorder = Recorder()
    recorder.record(cluster, unfenced, 1)
    fill(log, "seen", [10])
    recorder.record(cluster, unfenced, 1)
    now_ms = cluster.store.now().wall_ms
    runs = [
        TaskRun("maintenance: seal", "coordinator", now_ms - 2, 0.1, None, "sealed 1"),
        TaskRun("maintenance: seal", "coordinator", now_ms - 1, 0.1, "OSError: disk full"),
    ]
    append_records(cluster, METRICS, task_records(runs, 0))
    report = {"name": "q-1", "query_name": "prices", "run_id": "r", "state": "running", "lag": 7, "batch_s": 0.5}
    append_records(cluster, METRICS, [Recorded(int(Kind.QUERY), "q-1", report)])
    seal = next(row for row in console.facts("/maintenance")["tasks"] if row["task"] == "maintenance: seal")
    assert (seal["last_success_ms"], seal["error"], seal["every_ms"] > 0) == (now_ms - 2, "OSError: disk full", True)
    assert [run["outcome"] for run in console.facts("/maintenance?outcome=failed")["runs"]] == ["failed"]
    assert "disk full" in console.page("/maintenance")
    [query] = rows(console, "/queries")
    assert (query["query_name"], query["lag"]) == ("prices", 7)
    assert console.facts("/queries/q-1/lag")["series"][0]["name"] == "lag"
    assert "prices" in console.page("/queries/q-1")
    console.page("/queries/q-2", 404)
    console.page("/queries/q-1/unknown", 404)
    chart = console.facts("/topics/seen/throughput?hours=1")
    assert any(chart["series"][0]["values"]) and len(chart["times"]) == len(chart["series"][0]["values"])
    with running_console(cluster) as another:
        assert next(row["rate"] for row in rows(another, "/topics") if row["topic"] == "seen") > 0


def test_the_audit_is_filtered_by_user_and_target(console, cluster):
    record_change(cluster, "ann", "/topics/{topic}/configs", "topic seen", {"config": "retention.ms"}, "succeeded", "x")
    record_change(cluster, "bob", "/groups/{group}/delete", "group g", {}, "failed", "x", "it has members")
    assert [change["who"] for change in console.facts("/audit")["changes"]] == ["bob", "ann"]
    assert [change["who"] for change in console.facts("/audit?who=ann")["changes"]] == ["ann"]
    assert [change["who"] for change in console.facts("/audit?target=group+g")["changes"]] == ["bob"]
    assert "it has members" in console.page("/audit?outcome=failed")


def test_each_page_is_shown_on_an_empty_cluster(console):
    for view in table().views:
        if "{" not in view.path:
            console.page(view.path)


def test_unknown_objects_are_not_found(console):
    for path in (
        "/topics/none", "/topics/none/throughput", "/topics/none/configs/retention.ms", "/topics/~2E~2E",
        "/topics/a~00", "/groups/none", "/groups/none/lag", "/groups/none/reset", "/groups/~00", "/transactions/none",
        "/transactions/~00", "/queries/none",
    ):  # fmt: skip
        assert "Not found" in console.page(path, 404)
        assert console.facts(path, 404)["error"]
