"""The pages of the console other than messages: their facts are those of the command line, and changes are safe."""

import json
import re
import socket
from contextlib import ExitStack

import pytest
from typer.testing import CliRunner

from spark_log import Consumer, Producer
from spark_log.cli.main import app
from spark_log.clients.admin.audit import record_change
from spark_log.cluster.lease import unfenced
from spark_log.cluster.topics import find_topic, list_topics
from spark_log.console.access.access_file import read_access_file
from spark_log.console.app import table
from spark_log.console.pages import audit
from spark_log.console.paths import url
from spark_log.console.routes import Allow
from spark_log.console.settings import AuthMethod
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.measurement import task_records
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.groups.committed_offsets import commit_offsets, committed_offsets
from spark_log.groups.share.administration import alter_group_configs, group_overrides
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.recorder import Recorder
from spark_log.maintenance.recorded_appends import append_records
from spark_log.metadata import tables as t
from spark_log.registry.registry import Registry
from spark_log.replication.controller.topic_operations import alter_configs
from tests.support.console import running_console
from tests.support.share_members import ShareMember
from tests.support.topics import fill, make

pytestmark = pytest.mark.on_sqlite

ACCESS = """
[groups.some]
role = "operator"
topics = ["seen*"]
[header]
proxies = ["127.0.0.0/8"]
"""


@pytest.fixture
def restricted(cluster, tmp_path):
    """The console of a user who may change everything of topics `seen*`, and sees no others."""
    path = tmp_path / "access.toml"
    path.write_text(ACCESS)
    settings = {"auth": AuthMethod.HEADER, "access": read_access_file(str(path)), "allow": frozenset(Allow)}
    with running_console(cluster, **settings) as console:
        console.client.headers |= {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "some"}
        yield console


@pytest.fixture
def topics(cluster, log):
    """Topics seen (3 partitions with 5, 1 and 0 records) and hidden."""
    make(cluster, "seen", 3)
    make(cluster, "hidden", 1)
    fill(log, "seen", [5, 1, 0])
    fill(log, "hidden", [2])


def commit(cluster, group="readers", **offsets):
    """`seen_0=3`: offset 3 of partition 0 of topic seen."""
    given = {TopicPartition(*_place(name)): offset for name, offset in offsets.items()}
    assert commit_offsets(cluster.store, group, given) == []


def _place(name):
    topic, number = name.rsplit("_", 1)
    return topic, int(number)


def rows(console, path):
    facts = console.facts(path)
    return facts["listing"]["rows"]


def previewed(console, path, **form):
    answer = console.client.post(f"/api/v1{path}/preview", data=form)
    assert answer.status_code == 200, answer.text
    return answer.json()


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


# Roles ---------------------------------------------------------------------------------------------------------------


def test_hidden_topics_are_nowhere(restricted, cluster, cluster_address, topics):
    commit(cluster, "both", seen_0=1, hidden_0=1)
    commit(cluster, "only-hidden", hidden_0=1)
    alter_group_configs(cluster.store, "shared", {"errors.deadletterqueue.topic.name": "hidden"})
    ShareMember(cluster, ["seen", "hidden"], "shared")
    ShareMember(cluster, ["hidden"], "share-of-hidden")
    record_change(cluster, "x", "/topics/{topic}/configs", "topic hidden", {}, "succeeded", "x")
    record_change(cluster, "x", "/topics", "", {"topic": "hidden"}, "succeeded", "x")
    record_change(cluster, "x", "/groups/{group}/reset", "group both", {"offsets": "hidden"}, "failed", "x", "hidden-0")
    with Producer(cluster=cluster_address, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("seen", b"x", partition=1).get(60)
        producer.send("hidden", b"x", partition=0).get(60)
        paths = ["/topics?internal=1", "/topics/seen", "/groups", "/groups/both", "/groups/both/reset?to=earliest",
                 "/groups/shared", "/groups/shared/reset?to=latest",
                 "/transactions", "/transactions/t", "/brokers", "/maintenance", "/queries", "/audit"]  # fmt: skip
        for path in paths:
            assert "hidden" not in json.dumps(restricted.facts(path)).replace("hidden_", ""), path
            assert ">hidden" not in restricted.page(path), path
        producer.abort_transaction()
    assert [row["group"] for row in rows(restricted, "/groups")] == ["both", "shared"]
    for path in (
        "/topics/hidden",
        "/topics/hidden/throughput",
        "/groups/only-hidden",
        "/groups/share-of-hidden",
        "/groups/both/reset?to=latest&topic=hidden",
    ):
        restricted.page(path, 404)
    assert restricted.facts("/groups/both")["lag"] == 4
    assert restricted.change("/topics/hidden/delete", confirm="hidden").status_code == 404
    assert restricted.change("/topics", topic="hidden2").status_code == 403
    assert restricted.change("/groups/both/delete", confirm="both").status_code == 403
    assert restricted.change("/groups/shared/delete", confirm="shared").status_code == 403
    form = {"config": "share.delivery.count.limit", "value": "3"}
    assert restricted.change("/groups/shared/configs", **form).status_code == 403
    assert restricted.change("/groups/both/reset", offsets='[["hidden", 0, 1, 0]]').status_code == 404
    assert restricted.change("/topics", topic="seen2").status_code == 303
    assert {topic.name for topic in list_topics(cluster)} >= {"seen", "seen2", "hidden"}


def test_a_restricted_user_sees_transactions_of_seen_topics_only(restricted, cluster, cluster_address, topics):
    writers = {"of seen": "seen", "of hidden": "hidden", "ended": "seen"}
    with ExitStack() as stack:
        for name, topic in writers.items():
            producer = stack.enter_context(Producer(cluster=cluster_address, transactional_id=name))
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"x", partition=0).get(60)
            if name == "ended":
                producer.commit_transaction()
        facts = restricted.facts("/transactions")
        assert (facts["open"], [row["transactional_id"] for row in facts["listing"]["rows"]]) == (1, ["of seen"])
        assert restricted.facts("/transactions?state=CompleteCommit")["listing"]["rows"] == []
        assert restricted.facts(url("/transactions/{id}", id="of seen"))["records"] == 1
        for name in ("of hidden", "ended"):
            restricted.page(url("/transactions/{id}", id=name), 404)
        assert restricted.facts("/")["open_transactions"] is None
        assert "Open transactions" not in restricted.page("/")


def test_a_restricted_user_sees_changes_of_seen_topics_and_groups_only(restricted, cluster, topics, monkeypatch):
    monkeypatch.setattr(audit, "LIMIT", 2)
    commit(cluster, "both", seen_0=1, hidden_0=1)
    commit(cluster, "only-hidden", hidden_0=1)
    changes = [
        ("/topics/{topic}/configs", "topic seen", {"value": "1"}),
        ("/topics/{topic}/configs", "topic hidden", {"value": "1"}),
        ("/groups/{group}/reset", "group both", {"offsets": "hidden"}),
        ("/groups/{group}/reset", "group only-hidden", {}),
        ("/groups/{group}/delete", "group gone", {}),
        ("/brokers", "broker 1", {}),
        ("/topics", "", {"topic": "hidden"}),
    ]
    for number, (action, target, parameters) in enumerate(changes):
        record_change(cluster, f"user {number}", action, target, parameters, "failed", "x", "error of hidden")
    facts = restricted.facts("/audit")
    assert [(each["who"], each["parameters"], each["error"]) for each in facts["changes"]] == [
        ("user 2", {}, None), ("user 0", {"value": "1"}, "error of hidden"),
    ]  # fmt: skip
    assert facts["older_ms"] == facts["changes"][-1]["time_ms"]
    for query in ("who=user+1", "target=group+only-hidden", "outcome=failed&who=user+5"):
        facts = restricted.facts(f"/audit?{query}")
        assert (facts["changes"], facts["older_ms"]) == ([], None), query


def test_reports_of_spark_queries_are_for_users_who_see_all_topics(restricted, cluster):
    report = {"name": "q-1", "query_name": "prices", "run_id": "r", "state": "running", "lag": 7}
    append_records(cluster, METRICS, [Recorded(int(Kind.QUERY), "q-1", report)])
    with running_console(cluster) as console:
        assert [row["query_name"] for row in rows(console, "/queries")] == ["prices"]
    assert rows(restricted, "/queries") == []
    assert "prices" not in restricted.page("/queries")
    for path in ("/queries/q-1", "/queries/q-1/lag"):
        restricted.page(path, 404)


# Changes -------------------------------------------------------------------------------------------------------------


def test_topics_are_created_enlarged_and_deleted_by_name(console, cluster):
    form = {"topic": "new", "partitions": "2", "configs": "retention.ms=1000\r\ncleanup.policy = compact\r\n"}
    assert console.change("/topics", **form).headers["location"] == "/topics/new"
    topic = cluster.store.read(lambda connection: find_topic(connection, "new"))
    assert (topic.partition_count, dict(topic.overrides)) == (
        2, {"retention.ms": "1000", "cleanup.policy": "compact"}
    )  # fmt: skip
    assert console.change("/topics", **form).status_code == 400, "it exists already"
    assert console.change("/topics", topic="other", configs="nonsense").status_code == 400
    assert console.change("/topics/new/partitions", total="5").status_code == 303
    assert console.facts("/topics/new")["partition_count"] == 5
    assert console.change("/topics/new/partitions", total="3").status_code == 400
    assert console.change("/topics/new/delete", confirm="old").status_code == 400
    assert console.change("/topics/new/delete", confirm="new").status_code == 303
    console.page("/topics/new", 404)


def test_a_config_is_previewed_set_and_reset(console, cluster, topics):
    path = "/topics/seen/configs/retention.ms"
    preview = previewed(console, path, value="1000")
    assert (preview["value"], preview["new"], preview["refused"]) == ("604800000", "1000", None)
    assert "retention.ms" in previewed(console, path, value="soon")["refused"]
    assert "would be refused" in console.change(f"{path}/preview", value="soon").text
    assert console.facts(f"{path}?value=1000")["new"] is None, "an address previews nothing"
    form = {"config": "retention.ms", "value": "1000", "expected": "604800000"}
    assert console.change("/topics/seen/configs", **form).status_code == 303
    assert console.change("/topics/seen/configs", **form).status_code == 400, "it is another value now"
    assert console.change("/topics/seen/configs", config="retention.ms", value="soon").status_code == 400
    assert console.change("/topics/seen/configs", config="nothing", value="1").status_code == 400
    assert previewed(console, path, reset="1")["new"] == "604800000"
    assert console.change("/topics/seen/configs", config="retention.ms", reset="1", expected="1000").status_code == 303
    assert cluster.store.read(lambda connection: find_topic(connection, "seen")).overrides == {}
    console.page("/topics/seen/configs/nothing", 404)


def test_a_config_without_a_limit_is_unlimited(console, cluster, topics):
    for path in ("/topics/seen", "/topics/seen/configs/max.compaction.lag.ms"):  # a form has the exact value
        assert "9223372036854775807" not in re.sub(r'(title|value)="[^"]*"', "", console.page(path))
    assert "<strong>unlimited</strong>" in console.change("/topics/seen/configs/retention.ms/preview", value="-1").text
    alter_configs(cluster, "seen", {"retention.ms": "-1"})
    assert re.search(r"retention\.ms</a></td><td><strong>unlimited</strong></td>", console.page("/topics/seen"))
    facts = console.facts("/topics/seen/configs/retention.ms")
    assert facts["value"] == "-1", "the API has the exact value"


def test_a_preview_does_not_ask_the_schema_registry_that_a_user_names(console, cluster):
    schema = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'
    Registry(cluster).register("s", schema)
    make(cluster, "typed", 1, value_format="avro", value_schema="registry:s", value_framing="confluent")
    path = "/topics/typed/configs/schema.registry.url"
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        address = f"http://127.0.0.1:{registry.getsockname()[1]}"
        preview = previewed(console, path, value=address)
        assert (preview["new"], preview["refused"], preview["asks_registry"]) == (address, None, True)
        assert "registry is asked when the change is applied" in console.change(f"{path}/preview", value=address).text
        with pytest.raises(BlockingIOError):
            registry.accept()


def test_configs_of_internal_topics_are_refused(console, cluster):
    record_change(cluster, "ann", "x", "y", {}, "succeeded", "test")
    refused = console.change("/topics/__audit/configs", config="retention.ms", value="1")
    assert refused.status_code == 403 and "internal" in refused.text
    assert console.change("/topics/__audit/configs/retention.ms/preview", value="1").status_code == 403
    topic = cluster.store.read(lambda connection: find_topic(connection, "__audit"))
    assert topic.config.retention_ms > 1


def test_a_hidden_password_is_not_stored_as_it_is_shown(console, cluster):
    address = "http://ann:pass/word@registry.example"
    make(cluster, "typed", 1)
    path = "/topics/typed/configs/schema.registry.url"
    page = console.change(f"{path}/preview", value=address).text
    assert f">{address}</textarea>" in page, "what is applied is what was given"
    form = {"config": "schema.registry.url"}
    assert console.change("/topics/typed/configs", **form, value=address).status_code == 303
    shown = console.facts(path)["value"]
    assert "pass" not in shown and "word" not in shown
    for value in (shown, shown + "/path"):
        assert console.change("/topics/typed/configs", **form, value=value).status_code == 400
        assert "write the secret" in previewed(console, path, value=value)["refused"]


def test_passwords_in_configs_are_hidden(console, cluster):
    make(cluster, "typed", 1, schema_registry_url="http://ann:secret@registry.example:8081")
    for path in ("/topics/typed", "/topics/typed/configs/schema.registry.url"):
        assert "secret" not in console.page(path) and "registry.example" in console.page(path)


RESETS = {
    "to=earliest": (0, 0, 0),
    "to=latest": (5, 1, 0),
    "to=offset&value=2": (2, 1, 0),
    "to=shift&value=-1": (2, 0, None),
    "to=time&value=2020-01-01T00:00:00Z": (0, 0, 0),
    "to=time&value=2100-01-01T00:00:00Z": (5, 1, 0),
}


@pytest.mark.parametrize("query", RESETS)
def test_a_reset_commits_exactly_what_its_preview_shows(console, cluster, topics, query):
    commit(cluster, seen_0=3, seen_1=1)
    partitions = "0,1" if RESETS[query][2] is None else ""
    preview = console.facts(f"/groups/readers/reset?{query}&topic=seen&partitions={partitions}")
    expected = [new for new in RESETS[query] if new is not None]
    assert [row["new"] for row in preview["rows"]] == expected
    assert [row["current"] for row in preview["rows"]][:2] == [3, 1]
    first = preview["rows"][0]
    assert (first["again"], first["skipped"]) == (max(0, 3 - first["new"]), max(0, first["new"] - 3))
    assert committed_offsets(cluster.store, "readers") == {("seen", 0): 3, ("seen", 1): 1}, "a preview changes nothing"
    done = console.change("/groups/readers/reset", offsets=preview["offsets"])
    assert (done.status_code, done.headers["location"]) == (303, "/groups/readers")
    assert [offset for _, offset in sorted(committed_offsets(cluster.store, "readers").items())] == expected


def test_a_reset_that_makes_no_sense_is_refused(console, cluster, topics):
    commit(cluster, seen_0=3)
    for query in (
        "to=offset&value=x", "to=never", "to=shift", "to=shift&value=5&topic=seen",
        "to=earliest&topic=seen&partitions=9",
        "to=earliest&partitions=0", "to=time&value=5", "to=latest&topic=seen&partitions=a", "to=earliest&topic=none",
    ):  # fmt: skip
        assert console.client.get(f"/groups/readers/reset?{query}").status_code in (400, 404), query


def test_a_reset_is_refused_when_something_has_changed_since_its_preview(console, cluster, cluster_address, topics):
    commit(cluster, seen_0=3)
    shown = console.facts("/groups/readers/reset?to=earliest")["offsets"]
    commit(cluster, seen_0=4)
    refused = console.change("/groups/readers/reset", offsets=shown)
    assert refused.status_code == 400 and "offset is 4 now" in refused.text
    shown = console.facts("/groups/readers/reset?to=earliest")["offsets"]
    cli(cluster_address, "topic", "delete-records", "seen", "--before", "0=2", "--yes")
    refused = console.change("/groups/readers/reset", offsets=shown)
    assert refused.status_code == 400 and "outside the log" in refused.text
    assert committed_offsets(cluster.store, "readers") == {("seen", 0): 4}
    for malformed in (
        "",
        "[]",
        "[1]",
        '[["seen", 0, 4]]',
        '[["seen", 0, 4, -1]]',
        '{"a": 1}',
        '[["none", 0, null, 0]]',
    ):
        assert console.change("/groups/readers/reset", offsets=malformed).status_code in (400, 404), malformed


def test_a_reset_is_refused_when_the_group_becomes_active_meanwhile(console, cluster, cluster_address, topics):
    commit(cluster, seen_0=3)
    shown = console.facts("/groups/readers/reset?to=earliest")["offsets"]
    with Consumer("seen", cluster=cluster_address, group_id="readers", enable_auto_commit=False) as consumer:
        consumer.poll(timeout_ms=2000)
        refused = console.change("/groups/readers/reset", offsets=shown)
        assert refused.status_code == 400 and "live members" in refused.text
        page = console.page("/groups/readers/reset?to=earliest")
        assert "stop its consumers first" in page and "Commit these offsets" not in page
        assert console.change("/groups/readers/delete", confirm="readers").status_code == 400
        assert console.change("/groups/readers/delete-offsets", topic="seen").status_code == 400
    assert committed_offsets(cluster.store, "readers")["seen", 0] == 3
    assert console.change("/groups/readers/reset", offsets=shown).status_code == 303


def test_offsets_of_a_topic_and_a_group_are_deleted(console, cluster, topics):
    commit(cluster, seen_0=3, hidden_0=1)
    assert console.change("/groups/readers/delete-offsets", topic="hidden").status_code == 303
    assert committed_offsets(cluster.store, "readers") == {("seen", 0): 3}
    assert console.change("/groups/readers/delete", confirm="other").status_code == 400
    assert console.change("/groups/readers/delete", confirm="readers").headers["location"] == "/groups"
    console.page("/groups/readers", 404)


def test_a_read_only_console_shows_no_forms_for_changes(cluster, topics):
    commit(cluster, seen_0=3)
    with running_console(cluster) as console:
        for path in ("/topics", "/topics/seen", "/topics/seen/configs/retention.ms", "/groups/readers",
                     "/groups/readers/reset?to=earliest"):  # fmt: skip
            forms = [form for form in console.page(path).split("<form")[1:] if 'method="post"' in form.split(">")[0]]
            assert all("favourite" in form or "/logout" in form for form in forms), path
        assert console.change("/topics/seen/configs/retention.ms/preview", value="1").status_code == 403
