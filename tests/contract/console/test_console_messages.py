"""The pages of messages and produce, their JSON, and downloads: what they show, and what roles hide."""

import base64
import csv
import io
import json
import socket
import time
from threading import Event
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_log.console.access.access_file import read_access_file
from spark_log.console.pages import messages as pages
from spark_log.console.pages.messages import running
from spark_log.console.paths import url
from spark_log.console.routes import Allow
from spark_log.console.search.search import Conditions
from spark_log.console.settings import AuthMethod
from tests.support.console import running_console
from tests.support.schemas import document, typed
from tests.support.topics import append, make
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.on_sqlite

SCRIPT = "<script>alert(1)</script>"
MESSAGES = "/topics/{topic}/messages"


def messages(topic, **query):
    return url(MESSAGES, query, topic=topic)


def offsets(facts):
    return [(each["partition"], each["offset"]) for each in facts["messages"]]


def test_searches_go_backwards_from_the_tail_and_forwards_and_continue(console, cluster, log):
    topic = make(cluster, "t", 2)
    for n in range(30):
        append(log, topic, json.dumps({"n": n}), partition=n % 2, key=b"k%d" % n, timestamp_ms=1_700_000_000_000 + n)
    newest = console.facts(messages("t", count=10))
    assert offsets(newest) == [(n % 2, n // 2) for n in range(29, 19, -1)]
    older = console.facts(messages("t", count=10, token=newest["progress"]["token"]))
    assert offsets(older) == [(n % 2, n // 2) for n in range(19, 9, -1)]
    even = console.facts(messages("t", start="earliest", count=4, filter="value.n > 8 AND partition = 0"))
    assert offsets(even) == [(0, 5), (0, 6), (0, 7), (0, 8)]
    rest = console.facts(
        messages("t", start="earliest", filter="value.n > 8 AND partition = 0", token=even["progress"]["token"])
    )
    assert offsets(rest) == [(0, offset) for offset in range(9, 15)]
    assert rest["progress"]["stopped_by"] == "" and rest["progress"]["records"] == 6
    assert offsets(console.facts(messages("t", start="time", time="1700000000020"))) == [
        (n % 2, n // 2) for n in range(20, 30)
    ]
    assert offsets(console.facts(messages("t", start="offset", offset=14, partition=1))) == [(1, 14)]
    assert offsets(console.facts(messages("t", key="k7"))) == [(1, 3)]
    assert offsets(console.facts(messages("t", key="azc=", key_encoding="base64"))) == [(1, 3)]
    page = console.page(messages("t", filter="value.n = 3", count=5))
    assert "1 message of 30 records read" in page and "All offsets have been searched" in page
    for query, error in [
        ({"filter": "value.n >"}, "filter: at character 9"),
        ({"partition": "2"}, "partition"),
        ({"count": "501"}, "count"),
        ({"start": "middle"}, "start"),
        ({"time": "soon", "start": "time"}, "time"),
        ({"token": "x"}, "token"),
        ({"key": "x", "key_encoding": "hex"}, "key"),
    ]:
        assert error in console.facts(messages("t", **query), 400)["error"]
        assert error in console.page(messages("t", **query), 400)
    assert console.facts(messages("none"), 404) and console.facts("/topics/t/messages/0/15", 404)
    assert console.facts("/topics/t/messages/2/0", 400) and console.facts("/topics/t/messages/0/x", 400)


def test_hostile_bytes_are_shown_as_text_or_hex_and_downloads_are_exact(console, cluster, log):
    topic = make(cluster, "t", 1)
    large = "é" * 500_000
    hostile = [SCRIPT, "a\x00b\u202e", large, "=1+1"]
    append(log, topic, *hostile, key=b"\xff\xfe", headers=[("<b>", b"\xff"), ("h", b"\x00")])
    page = console.page(messages("t"))
    assert SCRIPT not in page and "&lt;script&gt;" in page and "a\\x00b\\u202e" in page and "\x00" not in page
    assert "&lt;b&gt;" in page and "ff fe" in page and len(page) < 20_000
    whole = console.page("/topics/t/messages/0/2")
    assert large in whole
    for offset, value in enumerate(hostile):
        assert console.client.get(f"/topics/t/messages/0/{offset}/value").content == value.encode()
    assert console.client.get("/topics/t/messages/0/0/key").content == b"\xff\xfe"
    assert console.client.get("/topics/t/messages/0/0/record").status_code == 404
    lines = console.client.get(
        url("/topics/{topic}/messages.ndjson", {"start": "earliest"}, topic="t")
    ).text.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["value"] for each in found] == hostile
    assert {(each["key"], each["key_encoding"]) for each in found} == {
        (base64.b64encode(b"\xff\xfe").decode(), "base64")
    }
    assert found[0]["headers"][0] == {"key": "<b>", "value": "/w==", "encoding": "base64"}
    download = console.client.get("/api/v1/topics/t/messages.csv?start=earliest")
    assert "attachment" in download.headers["content-disposition"]
    limit = csv.field_size_limit(1 << 22)
    try:
        rows = list(csv.DictReader(io.StringIO(download.text, newline="")))
    finally:
        csv.field_size_limit(limit)
    assert [row["value"] for row in rows] == [SCRIPT, "a\x00b\u202e", large, "'=1+1"]


def test_typed_topics_show_columns_and_bad_records(console, cluster, log):
    topic = typed(cluster)
    append(log, topic, document(1), document(2), "{oops")
    facts = console.facts(messages("orders", format="columns", filter="record.n = 2 OR record_error IS NOT NULL"))
    assert offsets(facts) == [(0, 2), (0, 1)]
    assert facts["messages"][1]["record"] == {"item": "i2", "price": 1.0, "n": 2}
    assert facts["messages"][0]["record_error"].startswith("not valid JSON")
    page = console.page(messages("orders", format="columns"))
    assert '<th scope="col">price</th>' in page and "bad record" in page
    assert "bad record" not in console.page(messages("orders", filter="record_error IS NULL"))
    assert "&#34;price&#34;: 1.0" in console.page("/topics/orders/messages/0/1")


def test_typed_columns_that_are_too_large_for_a_table_are_on_the_page_of_the_message(
    console, cluster, log, monkeypatch
):
    monkeypatch.setattr(pages, "TABLE_COLUMNS_BYTES", 100 << 10)
    topic = typed(cluster, value_schema="n BIGINT, flags ARRAY<BOOLEAN>")
    append(log, topic, json.dumps({"n": 1, "flags": [None] * 1000}), json.dumps({"n": 2, "flags": [True]}))
    for query in ({"count": 100}, {"count": 100, "filter": "record.n > 0"}):
        small, large = console.facts(messages("orders", **query))["messages"]
        assert small["record"] == {"n": 2, "flags": [True]} and small["record_error"] is None
        assert large["record"] is None and large["record_error"].startswith("too large to show")
        assert large["value"]["text"].startswith('{"n": 1')
    assert console.facts(messages("orders", count=10))["messages"][1]["record"]["n"] == 1
    assert "&#34;n&#34;: 1" in console.page("/topics/orders/messages/0/0")


def test_a_live_tail_renders_rows_alone(console, cluster, log):
    topic = make(cluster, "t", 1)
    append(log, topic, "first")
    assert 'hx-trigger="every 1s"' in console.page(messages("t", live=1))
    rows = messages("t", live=1, part=1)
    assert "first" in console.page(rows) and "<html" not in console.page(rows)
    append(log, topic, "second")
    with running.of("search of local") as stopped:
        assert "second" in console.page(rows)
        assert not stopped(), "a live tail leaves the user's search alone"
        console.page(messages("t", key="k"))
        assert stopped(), "the next search does not"


@pytest.mark.parametrize("path", ["messages", "messages.csv"])
def test_a_search_stops_when_the_browser_leaves(console, cluster, log, monkeypatch, path):
    topic = make(cluster, "t", 1, delta_max_lag_ms="-1")  # a sealed tail is read as one batch
    batches = 300
    for _ in range(batches):
        append(log, topic, "v")
    batch_read, gone, looked_at = Event(), Event(), []

    def slow(self, batch):
        looked_at.append(batch)
        batch_read.set()
        assert gone.wait(LIMIT_S)
        time.sleep(0.02)
        return pa.repeat(False, batch.num_rows)

    monkeypatch.setattr(Conditions, "mask", slow)
    host, port = urlsplit(console.url).netloc.split(":")
    cookie = "; ".join(f"{name}={value}" for name, value in console.client.cookies.items())
    request = f"GET /topics/t/{path}?start=earliest&key=k HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
    with socket.create_connection((host, int(port))) as browser:
        browser.sendall(request.encode())
        assert batch_read.wait(LIMIT_S)
    gone.set()
    wait_until(lambda: running.count == 0)
    assert len(looked_at) < batches


def test_produce_appends_one_record(console, cluster, log):
    make(cluster, "t", 3)
    answer = console.change(
        "/topics/t/produce", key="k", key_encoding="text", value="a\r\nb", headers="h: 1\r\ng: x: y"
    )
    assert answer.status_code == 303
    partition = 1 if answer.headers["location"].endswith("/1/0") else int(answer.headers["location"].split("/")[-2])
    found = console.facts(answer.headers["location"])
    assert found["message"]["value"]["text"] == "a\nb"
    assert [(each["name"], each["value"]["text"]) for each in found["message"]["headers"]] == [
        ("h", "1"),
        ("g", "x: y"),
    ]
    answer = console.client.post(
        "/api/v1/topics/t/produce", json={"value": "/w==", "value_encoding": "base64", "partition": 2}
    )
    assert answer.json() == {"topic": "t", "partition": 2, "offset": 0 if partition != 2 else 1}
    form = console.page(f"/topics/t/produce?partition=2&offset={answer.json()['offset']}")
    assert "/w==</textarea>" in form and '<option value="base64" selected>' in form
    typed(cluster, value_bad_records="reject")
    for fields, error in [
        ({"value": "{oops"}, "not valid JSON"),
        ({"value": "{oops", "value_encoding": "json"}, "not JSON"),
        ({"value": "?", "value_encoding": "base64"}, "not base64"),
        ({"value": "{}", "partition": "9"}, "partition"),
        ({"value": "{}", "headers": "h"}, "headers"),
        ({"key": "k", "value": "{}"}, "key: null has no text"),
    ]:
        answer = console.client.post("/api/v1/topics/orders/produce", json=fields)
        assert (answer.status_code, error in answer.json()["error"]) == (400, True), answer.text
    answer = console.client.post("/api/v1/topics/__audit/produce", json={"value": "x"})
    assert answer.status_code in (400, 404)


ACCESS = """
[header]
user = "X-User"
groups = "X-Groups"
proxies = ["127.0.0.1"]
[groups.masked]
masked = ["record.item", "headers.token", "value.person.ssn"]
[groups.blind]
messages = false
role = ["produce"]
[groups.keyless]
masked = ["key"]
"""


@pytest.fixture
def of_group(cluster, tmp_path):
    """A function from a group to a client of the console whose user belongs to it."""
    path = tmp_path / "access.toml"
    path.write_text(ACCESS)
    with running_console(
        cluster, auth=AuthMethod.HEADER, access=read_access_file(str(path)), allow=frozenset(Allow)
    ) as console:

        def client(group):
            console.client.headers.update({"X-User": "ann", "X-Groups": group})
            return console

        yield client


def test_masked_fields_are_in_no_page_download_or_filter(of_group, cluster, log):
    topic = typed(cluster)
    secret = '{"item": "S3CRET", "n": 1, "person": {"SSN": "S3CRET", "name": "ann"}, "list": [{"item": "x"}]}'
    append(log, topic, secret, "S3CRET", '["S3CRET"]', key=b"k", headers=[("token", b"S3CRET"), ("h", b"1")])
    console = of_group("masked")
    progress = console.facts(messages("orders"))["progress"]
    assert progress["records"] == 3 and progress["bytes"] is None, "it would tell the length of what is hidden"
    for path in (
        *(messages("orders", format=form) for form in ("auto", "text", "json", "hex", "columns")),
        "/topics/orders/messages/0/0", "/topics/orders/messages/0/1", "/topics/orders/messages/0/2",
        "/topics/orders/messages.csv", "/topics/orders/messages.ndjson", "/topics/orders/produce?partition=0&offset=0",
    ):  # fmt: skip
        for base in ("", "/api/v1"):
            text = console.client.get(base + path).text
            assert "S3CRET" not in text and "53 33 43 52" not in text, path
    [found] = console.facts(messages("orders", partition=0, filter="offset = 0"))["messages"]
    assert json.loads(found["value"]["text"])["person"] == {"SSN": "(hidden)", "name": "ann"}
    assert found["record"] == {"item": "(hidden)", "price": None, "n": 1}
    for query in (
        {"filter": "record.item = 'S3CRET'"}, {"filter": "value.item = 'S3CRET'"}, {"filter": "value LIKE '%S3CRET%'"},
        {"filter": "LENGTH(value) > 3"}, {"filter": "record.Item IS NULL"}, {"filter": "value.PERSON.ssn = 'a'"},
        {"filter": "headers['token'] = 'a'"}, {"filter": "value.person IS NULL"}, {"header": "Token=S3CRET"},
    ):  # fmt: skip
        for path in (messages("orders", **query), url("/topics/orders/messages.csv", query)):
            assert "hidden from you" in console.facts(path, 400)["error"], query
    assert console.client.get("/topics/orders/messages/0/0/value").status_code == 403
    assert console.client.get("/topics/orders/messages/0/0/key").content == b"k"
    assert len(console.facts(messages("orders", filter="record.n = 1 AND key = 'k'"))["messages"]) == 1
    keyless = of_group("keyless")
    assert keyless.facts(messages("orders"))["messages"][0]["key"]["form"] == "hidden"
    assert "hidden from you" in keyless.facts(messages("orders", key="k"), 400)["error"]


def test_a_role_without_messages_sees_none_and_may_still_produce(of_group, cluster, log):
    topic = make(cluster, "t", 1)
    append(log, topic, "S3CRET")
    console = of_group("blind")
    for path in ("", "/0/0", "/0/0/value", ".csv", ".ndjson"):
        assert console.client.get(f"/topics/t/messages{path}").status_code == 403, path
    assert "S3CRET" not in console.page("/topics/t/produce?partition=0&offset=0")
    assert console.change("/topics/t/produce", value="v").status_code == 303
