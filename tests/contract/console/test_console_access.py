"""Who gets into the console and may change something: every method of authentication, every changing route."""

import base64
import json
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urljoin

import httpx2
import pytest

from spark_log.clients.admin.audit import read_changes
from spark_log.console.access import basic
from spark_log.console.access.access_file import read_access_file
from spark_log.console.access.guard import OF_ONE_USER_MAX
from spark_log.console.access.passwords import hash_password
from spark_log.console.access.request_rules import BODY_BYTES_MAX
from spark_log.console.app import table
from spark_log.console.pages import overview
from spark_log.console.paths import url
from spark_log.console.routes import Allow, Change, Done, View
from spark_log.console.settings import AuthMethod
from spark_log.registry import bounded_requests
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import (
    CLIENT_ID,
    CLIENT_SECRET,
    EXAMPLES,
    SAME_ORIGIN,
    new_key,
    running_console,
    running_provider,
)
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.on_sqlite

GROUPS = """
[groups.operators]
role = "operator"
[groups.producers]
role = ["produce"]
[groups.viewers]
topics = ["seen-*"]
masked = ["value.ssn"]
"""


@pytest.fixture
def applied(monkeypatch):
    """The names to which the changing route of this test was applied."""
    names = []

    def apply(call):
        names.append(call.path["name"])
        return Done("/", f"changed {call.path['name']}", {"by": call.user.name})

    change = Change("/test-change/{name}", Allow.CONFIGS, apply, hidden=frozenset({"value"}))
    monkeypatch.setattr(overview, "CHANGES", (change,), raising=False)
    return names


@pytest.fixture
def access(tmp_path):
    """A function that reads an access file of GROUPS and `text`."""

    def read(text=""):
        path = tmp_path / "access.toml"
        path.write_text(GROUPS + text)
        return read_access_file(str(path))

    return read


def posts(routes):
    """Each changing route as a page and as API, with a value for each name of its path."""
    for route in routes:
        path = url(route.path, **EXAMPLES)
        yield from (path, f"/api/v1{path}")


def test_every_changing_route_is_refused_read_only_cross_site_without_a_session_and_without_role(
    cluster, access, applied
):
    routes = [*posts(table().changes), *posts(table().previews)]
    every_route = [*routes, *posts(table().preferences)]
    assert "/test-change/x" in routes
    roles = access('[users.ann]\npassword = "' + hash_password("p") + '"\ngroups = ["viewers"]\n')
    with running_console(cluster) as read_only:
        for path in routes:
            assert read_only.client.post(path).status_code == 403, path
        for path in every_route:
            with read_only.stranger() as stranger:
                assert stranger.post(path).status_code == 401, path
    with running_console(cluster, allow=frozenset(Allow)) as console:
        for path in every_route:
            for sender in (
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Sec-Fetch-Site": "none"},
            ):
                assert console.client.post(path, headers=sender).status_code == 403, (path, sender)
            del console.client.headers["Sec-Fetch-Site"]
            assert console.client.post(path).status_code == 403, "no header says where it comes from"
            assert console.client.post(path, headers={"Origin": "http://evil.example"}).status_code == 403
            console.client.headers["Sec-Fetch-Site"] = "same-origin"
            assert console.client.get(path, params={"token": "x"}).status_code != 303, "a change is no GET"
    with running_console(cluster, auth=AuthMethod.BASIC, access=roles, allow=frozenset(Allow)) as console:
        for path in routes:
            assert console.client.post(path).status_code == 401, path
            assert console.client.post(path, auth=("ann", "p")).status_code == 403, path
    assert applied == []
    refused = {change.action for change in read_changes(cluster, outcome="refused")}
    assert refused == {change.action or change.path for change in table().changes}


@pytest.mark.parametrize("method", [AuthMethod.BASIC, AuthMethod.HEADER, AuthMethod.TOKEN])
def test_another_site_cannot_send_any_request_whatever_the_authentication(cluster, access, method):
    users = f'[users.ann]\npassword = "{hash_password("p")}"\ngroups = ["operators"]\n'
    roles = access(users + '[header]\nproxies = ["127.0.0.0/8"]\n[groups."*"]\n')
    paths = [url(route.path, **EXAMPLES) for route in (*table().views, *table().streams)]
    with running_console(cluster, auth=method, access=roles) as console:
        client = console.client
        del client.headers["Sec-Fetch-Site"]
        client.headers |= {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "operators"}
        client.headers["Authorization"] = "Basic " + base64.b64encode(b"ann:p").decode()
        for path in (*paths, *(f"/api/v1{path}" for path in paths)):
            for sender in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Referer": "http://e/"}):
                assert client.get(path, headers=sender).status_code == 403, (path, sender)
            assert client.get(path, headers={"Sec-Fetch-Site": "none"}).status_code != 403, "a bookmark"
            expected = path != "/" and method is not AuthMethod.TOKEN
            assert (client.get(path).status_code == 403) is expected, (path, "no header says where it comes from")
        page = client.get("/topics?q=%22%3E", headers={"Sec-Fetch-Site": "cross-site"}).text
        assert '<a href="/topics?q=%22%3E">Open this page' in page
        outside = client.get(f"{console.url}//evil.example", headers={"Sec-Fetch-Site": "cross-site"}).text
        assert '<a href="/evil.example">' in outside
        assert client.head("/topics", headers={"Sec-Fetch-Site": "none"}).status_code == 405


def test_a_change_is_applied_shown_once_and_recorded_without_hidden_fields(cluster, applied):
    with running_console(cluster, allow=frozenset({Allow.CONFIGS})) as console:
        done = console.change("/test-change/~2E~2E", value="my <b>text</b>", other="1")
        assert (done.status_code, done.headers["location"]) == (303, "/")
        assert 'role="status">changed ..<' in console.page("/")
        assert 'role="status"' not in console.page("/")
        answer = console.client.post("/api/v1/test-change/a", json={"other": {"b": 1}})
        assert (answer.status_code, answer.json()) == (200, {"by": "local"})
        assert console.client.post("/api/v1/test-change/a", json=[1]).status_code == 400
        many = {f"field-{number}": "x" for number in range(51)}
        answer = console.client.post("/api/v1/test-change/many", json=many)
        assert (answer.status_code, "51 fields" in answer.json()["error"]) == (400, True), "they would hide each other"
    assert applied == ["..", "a"]
    failed, newest, first = read_changes(cluster)
    assert (failed.target, failed.outcome) == ("name many", "failed")
    assert (first.who, first.action, first.target, first.outcome, first.source) == (
        "local", "/test-change/{name}", "name ..", "succeeded", "console",
    )  # fmt: skip
    assert first.parameters == {"value": "***", "other": "1"}
    assert newest.parameters == {"other": '{"b": 1}'}


def test_refused_changes_do_not_fill_the_audit(cluster, access, applied, monkeypatch):
    monkeypatch.setattr("spark_log.console.audit._REFUSAL_S", 3_600.0)
    roles = access('[users.ann]\npassword = "' + hash_password("p") + '"\ngroups = ["viewers"]\n')
    with running_console(cluster, auth=AuthMethod.BASIC, access=roles, allow=frozenset(Allow)) as console:
        for _ in range(3):
            assert console.client.post("/test-change/x", auth=("ann", "p"), data={"a": "b" * 999}).status_code == 403
    [refused] = read_changes(cluster, outcome="refused")
    assert refused.parameters == {"a": "***"}


def test_hosts_sizes_and_methods_that_do_not_belong_are_refused(cluster, applied):
    with running_console(cluster, allow=frozenset(Allow), public_url="http://log.example/") as console:
        client = console.client
        for host in ("evil.example", "localhost.evil.example", "0.0.0.0"):
            assert client.get("/static/console.css", headers={"Host": host}).status_code == 400
        for host in ("log.example", "localhost:1"):
            assert client.get("/static/console.css", headers={"Host": host}).status_code == 200
        assert all(client.request(method, "/").status_code == 405 for method in ("PUT", "DELETE", "PATCH", "TRACE"))
        assert client.get("/", headers={"X-Long": "x" * 50_000}).status_code == 431
        large = b"value=" + b"x" * BODY_BYTES_MAX
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/test-change/a", content=large, headers=form).status_code == 413
        in_parts = iter([large[:1_000_000]] * 10)
        assert client.post("/test-change/a", content=in_parts, headers=form).status_code == 413
        sent = {"Origin": "http://log.example", "Host": "internal"}
        assert client.get("/", headers=sent).status_code == 400
    assert applied == []


def test_every_answer_has_the_security_headers(cluster):
    with running_console(cluster) as console, console.stranger() as stranger:
        answers = [console.client.get("/"), stranger.get("/"), console.client.get("/static/console.css"),
                   console.client.get("/nowhere"), stranger.get("/", headers={"Host": "evil.example"})]  # fmt: skip
        assert [answer.status_code for answer in answers] == [200, 401, 200, 404, 400]
        for answer in answers:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"


def test_names_and_passwords_are_checked(cluster, access):
    users = f'[users.ann]\npassword = "{hash_password("pä:ss")}"\ngroups = ["viewers"]\n'
    users += f'[users.bob]\npassword = "{hash_password("b")}"\ngroups = ["unknown"]\n'
    create_topic(cluster, "seen-1", 1)
    create_topic(cluster, "hidden", 1)
    with running_console(cluster, auth=AuthMethod.BASIC, access=access(users)) as console:
        assert console.client.get("/").headers["www-authenticate"].startswith("Basic")
        right = "Basic " + base64.b64encode("ann:pä:ss".encode()).decode()
        facts = console.client.get("/api/v1/", headers={"Authorization": right}).json()
        assert facts["topics"] == 1, "the role shows one of the topics"
        assert console.client.get("/", headers={"Authorization": right}).status_code == 200, "remembered"
        for wrong in ("ann:pass", "ann:", "anna:pä:ss", ":", "ann"):
            header = "Basic " + base64.b64encode(wrong.encode()).decode()
            assert console.client.get("/", headers={"Authorization": header}).status_code == 401, wrong
        for malformed in ("Basic ÿ", "Basic !!!", "Bearer x", "Basic", "Basic /w=="):
            header = malformed.encode("latin-1")
            assert console.client.get("/", headers={"Authorization": header}).status_code == 401, malformed
        assert console.client.get("/", auth=("bob", "b")).status_code == 403, "a group without a role"


def test_many_wrong_passwords_from_one_address_delay_no_other_user(cluster, access, monkeypatch):
    entered, proceed = threading.Semaphore(0), threading.Event()

    def slow_for_wrong(password, hashed):
        if password == "right":
            return True
        entered.release()
        return not proceed.wait(60)

    monkeypatch.setattr(basic, "matches", slow_for_wrong)
    users = "".join(f'[users.{name}]\npassword = "scrypt:a:b"\ngroups = ["viewers"]\n' for name in ("ann", "bob"))
    with running_console(cluster, auth=AuthMethod.BASIC, access=access(users)) as console:
        assert console.client.get("/", auth=("ann", "right")).status_code == 200
        guesses = {each.sock: each for each in (send(console, "ann", f"wrong {number}") for number in range(20))}
        assert entered.acquire(timeout=60)
        for _ in range(4):
            [refused, *_], _, _ = select.select(list(guesses), [], [], 10)
            answer = guesses.pop(refused).getresponse()
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert send(console, "bob", "right", "127.0.0.2").getresponse().status == 200, "of another address"
        assert console.client.get("/", auth=("ann", "right")).status_code == 200, "remembered"
        proceed.set()
        assert {guess.getresponse().status for guess in guesses.values()} == {401}
        assert send(console, "bob", "wrong").getresponse().status == 401


def test_many_requests_of_one_user_delay_no_other(cluster, access, monkeypatch):
    entered, proceed = threading.Semaphore(0), threading.Event()

    def wait(call):
        entered.release()
        return proceed.wait(60)

    monkeypatch.setattr(overview, "VIEWS", (*overview.VIEWS, View("/test-wait", "error.html", wait)))
    hashed = hash_password("p")
    users = "".join(f'[users.{name}]\npassword = "{hashed}"\ngroups = ["viewers"]\n' for name in ("ann", "bob"))
    with running_console(cluster, auth=AuthMethod.BASIC, access=access(users)) as console:
        assert console.client.get("/", auth=("ann", "p")).status_code == 200
        running = [send(console, "ann", "p", path="/api/v1/test-wait") for _ in range(OF_ONE_USER_MAX)]
        assert all(entered.acquire(timeout=60) for _ in running)
        refused = console.client.get("/api/v1/test-wait", auth=("ann", "p"))
        assert refused.status_code == 429 and "10 requests of yours" in refused.json()["error"]
        assert console.client.get("/", auth=("bob", "p")).status_code == 200
        proceed.set()
        assert {each.getresponse().status for each in running} == {200}
        assert console.client.get("/", auth=("ann", "p")).status_code == 200


def send(console, user, password, address="127.0.0.1", path="/"):
    """A connection that has sent a request and not read the answer."""
    connection = HTTPConnection(console.url.removeprefix("http://"), timeout=60, source_address=(address, 0))
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    connection.request("GET", path, headers={**SAME_ORIGIN, "Authorization": f"Basic {credentials}"})
    return connection


def test_metrics_are_for_users_who_see_all_topics(cluster, access):
    password = hash_password("p")
    users = "".join(
        f'[users.{name}]\npassword = "{password}"\ngroups = ["{name}"]\n' for name in ("operators", "viewers")
    )
    create_topic(cluster, "hidden", 1)
    with running_console(cluster, auth=AuthMethod.BASIC, access=access(users)) as console:
        scraper = httpx2.Client(base_url=console.url, timeout=60)  # Prometheus names no site
        assert scraper.get("/metrics").status_code == 401
        answer = scraper.get("/metrics", auth=("operators", "p"))
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
        assert 'topic="hidden"' in answer.text
        assert scraper.get("/metrics", auth=("viewers", "p")).status_code == 403
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert scraper.get("/metrics", auth=("operators", "p"), headers=foreign).status_code == 403
    with running_console(cluster) as console, console.stranger() as stranger:
        assert stranger.get("/metrics").status_code == 401
        assert "kafka_brokers" in console.page("/metrics")


def test_a_trusted_proxy_names_the_user(cluster, access):
    headers = {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "staff, operators"}
    trusted = access('[header]\nproxies = ["127.0.0.0/8"]\n')
    with running_console(cluster, auth=AuthMethod.HEADER, access=trusted) as console:
        assert console.client.get("/").status_code == 401
        assert "ann" in console.client.get("/", headers=headers).text
        assert console.client.get("/", headers={"X-Forwarded-User": "ann"}).status_code == 403
        twice = [("X-Forwarded-User", "ann"), ("X-Forwarded-User", "root"), ("X-Forwarded-Groups", "operators")]
        assert console.client.get("/", headers=twice).status_code == 401
    with running_console(
        cluster, auth=AuthMethod.HEADER, access=access('[header]\nproxies = ["10.0.0.1"]\n')
    ) as console:
        assert console.client.get("/", headers=headers).status_code == 403
        forwarded = {**headers, "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}
        assert console.client.get("/", headers=forwarded).status_code == 403


def login(console, client, path="/"):
    """Go to the provider and back, as a browser; the answer to the return."""
    to_provider = client.get(path)
    assert to_provider.status_code == 303
    back = httpx2.get(to_provider.headers["location"], timeout=60)
    assert back.status_code == 302, back.text
    return client.get(urljoin(console.url, back.headers["location"]))


def test_an_openid_connect_provider_names_the_user(cluster, access, tmp_path):
    (tmp_path / "secret").write_text(f"{CLIENT_SECRET}\n")
    with running_provider() as provider:
        table = {"issuer": provider.issuer, "client_id": CLIENT_ID, "client_secret_file": str(tmp_path / "secret")}
        text = "[oidc]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
        with running_console(cluster, auth=AuthMethod.OIDC, access=access(text)) as console:
            client = console.client
            assert client.get("/api/v1/").status_code == 401, "the API does not redirect"
            returned = login(console, client, "/?x=%22%3E%3Cscript%3E")
            assert returned.status_code == 200 and "<script>" not in returned.text
            assert "url=/?x=%22%3E%3Cscript%3E" in returned.text
            assert "SameSite=strict" in next(
                value for value in returned.headers.get_list("set-cookie") if "login" not in value
            )
            assert "ann" in console.page("/")
            client.post("/logout")

            to_provider = client.get("/")
            back = httpx2.get(to_provider.headers["location"], timeout=60).headers["location"]
            with console.stranger() as other:
                assert other.get(back).status_code == 401, "another browser"
                other.get("/")
                assert other.get(back).status_code == 401, "another login"
            own_cookies = dict(client.cookies)
            assert client.get(back).status_code == 200
            with console.stranger() as other:
                other.cookies.update(own_cookies)
                assert other.get(back).status_code == 401, "a state works once"
            assert client.get("/oidc/callback?code=x&state=y").status_code == 401
            client.post("/logout")

            provider.claims["groups"] = ["strangers"]
            assert login(console, client).status_code == 403
            for wrong in ({"nonce": "other"}, {"aud": "other"}, {"iss": "http://evil.example"}, {"exp": 1},
                          {"azp": "other"}):  # fmt: skip
                provider.claims = {"groups": ["viewers"], **wrong}
                assert login(console, client).status_code == 401, wrong
            provider.claims = {"groups": "viewers"}
            provider.key = new_key()
            assert login(console, client).status_code == 401, "signed with a key that the provider does not publish"
            provider.rotate_keys()
            assert login(console, client).status_code == 200
            assert console.page("/")


def test_requests_that_wait_for_the_provider_share_one_fetch_of_its_metadata(cluster, access, monkeypatch):
    monkeypatch.setattr(bounded_requests, "SILENCE_S_MAX", 60)
    monkeypatch.setattr(bounded_requests, "TOGETHER_S_MAX", 60)
    with running_provider() as provider:
        table = f'[oidc]\nissuer = "{provider.issuer}"\nclient_id = "{CLIENT_ID}"\n'
        with running_console(cluster, auth=AuthMethod.OIDC, access=access(table)) as console:
            provider.may_answer.clear()
            with ThreadPoolExecutor(50) as pool:  # more than the console has threads
                logins = [pool.submit(httpx2.get, f"{console.url}/topics", timeout=60) for _ in range(50)]
                assert provider.asked.wait(LIMIT_S)
                assert console.client.get("/health").status_code == 200
                assert console.client.get("/static/console.css").status_code == 200, "read in a thread"
                provider.may_answer.set()
                assert {login.result().status_code for login in logins} == {303}
            assert provider.metadata_requests == 1
