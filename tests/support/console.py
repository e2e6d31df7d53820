"""A console that runs in this process, a client with a session on it, and what it shows and asks.

`hostile_cluster` has hostile names and bytes everywhere. `OidcProvider` is an OpenID Connect provider on loopback:
discovery, keys, and the authorization code flow with PKCE. It logs everybody in as `claims` at once, without a page. It
refuses what a provider must refuse: another client, secret, redirect URI, or verifier, and a code that was used.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.jwk import RSAKey

from spark_log import Consumer, Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.console.server import serving
from spark_log.console.settings import ConsoleSettings
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.measurement import task_records
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.recorded_appends import append_records
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.server_processes import running_server
from tests.support.waiting import LIMIT_S

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


class Console:
    """The address of a console, the addresses with tokens that it printed, and a client with a session."""

    def __init__(self, url: str, printed: list[str]) -> None:
        self.url = url
        self.printed = printed
        self.client = httpx2.Client(base_url=url, headers=SAME_ORIGIN, timeout=30)

    def stranger(self) -> httpx2.Client:
        """A client without a session."""
        return httpx2.Client(base_url=self.url, headers=SAME_ORIGIN, timeout=30)

    def page(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.text

    def facts(self, path: str, status: int = 200) -> Any:
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json()

    def change(self, path: str, **form: str) -> httpx2.Response:
        return self.client.post(path, data=form)


@contextmanager
def running_console(cluster: Cluster, **settings: Any) -> Iterator[Console]:
    """A console at a free port. With tokens (the default), its client has a session."""
    printed: list[str] = []
    with serving(cluster, ConsoleSettings(**{"port": 0, **settings}), printed.append) as server:
        console = Console(server.url, printed)
        try:
            if printed:
                assert console.client.get("/?" + urlsplit(printed[0]).query).status_code == 303
            yield console
        finally:
            console.client.close()


MARKUP = "<script>alert(1)</script>\"'&amp;<img src=x onerror=alert(2)>{{7*7}}"
TOPIC = "A.b_c-9--.." + "x" * 60
TYPED = "typed.topic"
GROUP = f"../{MARKUP}/ü\u202e%2F?#"
TRANSACTIONAL_ID = f"tx {MARKUP}"
KEYS = (b"", MARKUP.encode(), b"\x00\x01nul\x00", b"\xff\xfe\xc3(", "zürich €".encode(), None)
VALUES = (
    None,
    b"",
    MARKUP.encode(),
    b'{"a": "</script><script>alert(3)</script>", "n": 1, "ssn": "1"}',
    b"\x00" * 100,
    b"\xff\xfe\xc3( not UTF-8 \xed\xa0\x80",
    b"=1+1",
    b"x" * 1024 * 1024,
    "\u202eright to left\r\n\u2028".encode(),
)
EXAMPLES = {
    "topic": TOPIC, "group": GROUP, "partition": "0", "offset": "2", "transactional_id": TRANSACTIONAL_ID,
    "broker": "1", "query_id": MARKUP, "part": "value", "task": "seal",
    "name": "x", "producer_id": "0",
    "producer": "0", "config": "retention.ms", "chart": "lag",
}  # fmt: skip
"""A value for each name in the paths of pages."""


@contextmanager
def hostile_cluster(folder: Path) -> Iterator[Cluster]:
    """While it is open, a member of GROUP reads, and a transaction of TRANSACTIONAL_ID is open."""
    address = str(folder / "cluster")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.init(address))
        add_broker(cluster, 2, [str(folder / "broker-2")], rack="r2")
        create_topic(cluster, TOPIC, 3, 2, {"max.message.bytes": str(2**21)})
        schema = '{"type": "object", "properties": {"price": {"type": "number"}, "email": {"type": "string"}}}'
        typed = {"value.format": "json", "value.schema": schema}
        create_topic(cluster, TYPED, 1, 1, typed)
        create_topic(cluster, "empty", 1, 1)
        with Producer(cluster=address, client_id=MARKUP, max_request_size=2**21) as producer:
            for at, value in enumerate(VALUES):
                key = KEYS[at % len(KEYS)]
                producer.send(TOPIC, value, key, headers=[(MARKUP, MARKUP.encode()), ("", b"\xff\x00")], partition=0)
            producer.send(TYPED, b'{"price": 1.5, "email": "<b>a@example.org</b>"}', b"k")
            producer.send(TYPED, b"not JSON <script>", b"k")
        settings = {"group_id": GROUP, "client_id": MARKUP, "enable_auto_commit": False}
        member = stack.enter_context(Consumer(TOPIC, cluster=address, auto_offset_reset="earliest", **settings))
        member.poll(timeout_ms=1000)
        member.seek(TopicPartition(TOPIC, 0), 3)
        member.commit()
        writer = stack.enter_context(Producer(cluster=address, transactional_id=TRANSACTIONAL_ID))
        writer.init_transactions()
        writer.begin_transaction()
        writer.send(TOPIC, b"open", partition=1).get(60)
        report = {
            "kind": "query",
            "name": MARKUP,
            "query_name": MARKUP,
            "run_id": MARKUP,
            "state": "failed",
            "error": MARKUP,
        }
        append_records(cluster, METRICS, [Recorded(int(Kind.QUERY), MARKUP, report)])
        run = TaskRun(f"maintenance: {MARKUP}", "coordinator", 1, 1.0, MARKUP)
        append_records(cluster, METRICS, task_records([run], 0))
        yield cluster


CLIENT_ID, CLIENT_SECRET = "the console", "s:e/cret"


class OidcProvider(ThreadingHTTPServer):
    """`claims`: of the next ID tokens, over the right ones. `key`: signs them; another one is a changed key.

    `asked` is set by the first request for metadata, which is answered once `may_answer` is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://127.0.0.1:{self.server_address[1]}/realm"
        self.claims: dict[str, Any] = {"preferred_username": "ann", "groups": ["viewers"]}
        self.key = new_key()
        self.published = self.key
        self.codes: dict[str, dict[str, str]] = {}
        self.metadata_requests = 0
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def rotate_keys(self) -> None:
        self.key = self.published = new_key()

    def id_token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": "1", "iat": now, "exp": now + 300, "nonce": asked["nonce"],
            **self.claims,
        }  # fmt: skip
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)


def new_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})


class _Handler(BaseHTTPRequestHandler):
    server: OidcProvider

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        issuer = self.server.issuer
        if url.path == "/realm/.well-known/openid-configuration":
            self.server.metadata_requests += 1
            self.server.asked.set()
            assert self.server.may_answer.wait(LIMIT_S)
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self._answer(200, {"issuer": issuer} | {name: f"{issuer}/{path}" for name, path in names.items()})
        elif url.path == "/realm/keys":
            self._answer(200, {"keys": [self.server.published.as_dict(private=False)]})
        elif url.path == "/realm/authorize":
            asked = {name: values[0] for name, values in parse_qs(url.query, strict_parsing=True).items()}
            assert asked["client_id"] == CLIENT_ID and asked["code_challenge_method"] == "S256", asked
            assert "openid" in asked["scope"].split(), asked
            code = secrets.token_hex(16)
            self.server.codes[code] = asked
            self.send_response(302)
            self.send_header(
                "Location", f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"
            )
            self.end_headers()
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text, strict_parsing=True).items()}
        asked = self.server.codes.pop(form["code"], None)
        basic = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        right = (
            asked is not None
            and [unquote_plus(part) for part in basic.split(":")] == [CLIENT_ID, CLIENT_SECRET]
            and form["redirect_uri"] == asked["redirect_uri"]
            and challenge == asked["code_challenge"]
        )
        if asked is None or not right:
            self._answer(400, {"error": "invalid_grant"})
        else:
            self._answer(200, {"token_type": "Bearer", "access_token": "-", "id_token": self.server.id_token(asked)})

    def _answer(self, status: int, facts: dict[str, Any]) -> None:
        body = json.dumps(facts).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


@contextmanager
def running_provider() -> Iterator[OidcProvider]:
    provider = OidcProvider()
    with running_server(provider):
        yield provider


def commit(cluster: Cluster, group: str = "readers", **offsets: int) -> None:
    """`seen_0=3`: offset 3 of partition 0 of topic seen."""
    given = {TopicPartition(*_place(name)): offset for name, offset in offsets.items()}
    assert commit_offsets(cluster.store, group, given) == []


def _place(name: str) -> tuple[str, int]:
    topic, number = name.rsplit("_", 1)
    return topic, int(number)
