"""SASL and the users of gateways: kafka-python, and clients that do it wrong."""

import itertools
import random
import socket
import struct
import time
from contextlib import suppress

import confluent_kafka as rdkafka
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka.admin import UserScramCredentialDeletion
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from typer.testing import CliRunner

from spark_log import Admin
from spark_log.cli.main import app
from spark_log.clients.admin.audit import read_changes
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import list_credentials
from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.metadata import tables as t
from tests.support.gateway_wire import WireConnection, frame_of
from tests.support.security import PASSWORD, put, small_cluster
from tests.support.server_processes import GatewayProcess

TOKEN = f"\0anna\0{PASSWORD}".encode()
"""PLAIN's."""


SCRAM_256, SCRAM_512 = (each.sasl_name for each in Mechanism)


FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM = 58, 34, 33


DAMAGED = 300


def sasl(mechanism, user="anna", password=PASSWORD):
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def settings(gateway, protocol, **others):
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {"bootstrap.servers": gateway.address, "security.protocol": protocol, **named}


@pytest.fixture
def plain_gateway(tmp_path):
    """SASL without TLS, on the loopback."""
    with small_cluster(tmp_path), GatewayProcess(
        tmp_path, str(tmp_path / "cluster"), "--sasl", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    ) as gateway:  # fmt: skip
        yield gateway
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def test_before_authentication_only_versions_and_sasl_are_answered(plain_gateway):
    with WireConnection(plain_gateway.port) as connection:
        keys = {each.api_key for each in connection.exchange(ApiVersionsRequest(), 0).api_keys}
        assert {17, 36} <= keys
        assert connection.exchange(SaslHandshakeRequest("GSSAPI"), 1).error_code == UNSUPPORTED_MECHANISM
    for request, version in ((MetadataRequest(topics=None), 1), (ApiVersionsRequest(), 0)):
        with WireConnection(plain_gateway.port) as connection:
            if request.API_KEY == ApiVersionsRequest.API_KEY:
                early = connection.exchange(SaslAuthenticateRequest(TOKEN), 1)
                assert early.error_code == ILLEGAL_STATE
            with pytest.raises((AssertionError, ConnectionError)):
                connection.exchange(request, version)
    with socket.create_connection(("127.0.0.1", plain_gateway.port), timeout=30) as greedy:
        greedy.sendall(struct.pack(">i", 1 << 20))
        assert greedy.recv(1) == b""


def test_a_connection_that_does_not_authenticate_has_few_requests(plain_gateway):
    """Each is answered on the event loop, and what the client has sent together is there without waiting."""
    for request, version in ((ApiVersionsRequest(), 0), (SaslHandshakeRequest("PLAIN"), 1)):
        with socket.create_connection(("127.0.0.1", plain_gateway.port), timeout=30) as greedy:
            greedy.sendall(frame_of(request, version) * 500)
            size = int.from_bytes(greedy.recv(4, socket.MSG_WAITALL), "big")
            received_bytes = 4 + sum(len(part) for part in iter(lambda: received(greedy), b""))
            assert received_bytes <= 20 * (4 + size)


def received(connection):
    """The next bytes; none at the end of the connection."""
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


def authenticated(connection, mechanism="PLAIN", token=TOKEN):
    assert connection.exchange(SaslHandshakeRequest(mechanism), 1).error_code == 0
    return connection.exchange(SaslAuthenticateRequest(token), 1)


def test_unknown_users_and_wrong_passwords_get_the_same_answers(plain_gateway):
    answers = set()
    for user in (b"anna", b"nobody", b"nobody\xc3\xa9", "\udcff".encode(errors="surrogateescape")):
        with WireConnection(plain_gateway.port) as connection:
            answer = authenticated(connection, token=b"\0" + user + b"\0wrong")
            answers.add((answer.error_code, "invalid credentials" in answer.error_message))
    assert answers == {(FAILED, True), (FAILED, False)}  # the last name is not UTF-8
    challenges = {}
    for user, _ in itertools.product((b"anna", b"nobody"), range(2)):
        with WireConnection(plain_gateway.port) as connection:
            answer = authenticated(connection, SCRAM_256, b"n,,n=" + user + b",r=abc")
            assert answer.error_code == 0
            nonce, salt, iterations = bytes(answer.auth_bytes).split(b",")
            challenges.setdefault(user, set()).add((len(nonce), len(salt), iterations, salt))
            wrong = b"c=biws," + nonce + b",p=" + b"A" * 43 + b"="
            refusal = connection.exchange(SaslAuthenticateRequest(wrong), 1)
            challenges[user].add((refusal.error_code, refusal.error_message))
    assert [len(each) for each in challenges.values()] == [2, 2]  # the salt stays
    known, unknown = ({each[:3] for each in found} for found in challenges.values())
    assert known == unknown


def test_tokens_without_headers_after_version_0_of_the_handshake(plain_gateway):
    with WireConnection(plain_gateway.port) as connection:
        assert connection.exchange(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
        connection.send_bytes(TOKEN)
        assert connection.receive_bytes() == b""
        assert [each.name for each in connection.exchange(MetadataRequest(topics=None), 1).topics] == ["t"]


def test_clients_authenticate_again_when_their_session_ends(tmp_path):
    options = ["--sasl", "PLAIN", "--reauthentication-ms", "1500"]
    with small_cluster(tmp_path) as cluster, GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:
        put(cluster, "ben")
        with WireConnection(gateway.port) as connection:
            assert authenticated(connection).session_lifetime_ms == 1500
            assert authenticated(connection).error_code == 0
            assert authenticated(connection, token=b"\0ben\0" + PASSWORD.encode()).error_code == FAILED
        with WireConnection(gateway.port) as connection:
            authenticated(connection)
            with pytest.raises((AssertionError, ConnectionError)):
                exchange_for(60, connection, MetadataRequest(topics=None))
        assert "the SASL session has ended" in gateway.output


def exchange_for(seconds, connection, request):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.exchange(request, 1)


def test_damaged_handshakes_do_not_end_a_gateway(plain_gateway):
    chosen = random.Random(19)
    whole = [frame_of(SaslHandshakeRequest("PLAIN"), 1), frame_of(SaslAuthenticateRequest(TOKEN), 1),
             frame_of(SaslHandshakeRequest(SCRAM_256), 1), frame_of(SaslAuthenticateRequest(b"n,,n=anna,r=abc"), 2),
             frame_of(ApiVersionsRequest(), 0)]  # fmt: skip
    for _ in range(DAMAGED):
        connection = socket.create_connection(("127.0.0.1", plain_gateway.port), timeout=30)
        with connection, suppress(ConnectionError):
            for each in chosen.sample(whole, 3):
                data = bytearray(each)
                match chosen.randrange(4):
                    case 0:
                        data[chosen.randrange(len(data))] = chosen.randrange(256)
                    case 1:
                        data = data[: chosen.randrange(len(data))]
                    case 2:
                        data[4:4] = chosen.randbytes(chosen.randrange(40))
                    case _:
                        pass
                connection.sendall(data)
    with WireConnection(plain_gateway.port) as connection:
        assert authenticated(connection).error_code == 0


def test_passwords_in_the_clear_need_a_loopback_address_or_consent():
    def on(host, *mechanisms, **others):
        return GatewaySettings(host, 1, host, 1, sasl_mechanisms=mechanisms, **others)

    assert on("127.0.0.1", "PLAIN").security_protocol == "SASL_PLAINTEXT"
    on("0.0.0.0", SCRAM_256)
    on("0.0.0.0", "PLAIN", allow_plain_without_tls=True)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(InvalidConfigurationError, match="in the clear"):
            on(host, "PLAIN")
    with pytest.raises(InvalidConfigurationError, match="GSSAPI"):
        on("127.0.0.1", "GSSAPI")


def test_users_are_managed_by_the_command_line_and_admin_clients(cluster, cluster_address, tmp_path):
    def run(*arguments, text=None):
        done = CliRunner().invoke(app, ["user", *arguments, "--cluster", cluster_address], input=text)
        assert done.exit_code == 0, done.output
        return done.output

    secret = tmp_path / "password"
    secret.write_text(PASSWORD + "\n")
    run("create", "anna", "--password-file", str(secret))
    run("create", "ben", "--mechanism", SCRAM_512, text=PASSWORD + "\n")
    with GatewayProcess(tmp_path, cluster_address, "--sasl", "SCRAM-SHA-256,SCRAM-SHA-512") as gateway:
        client = {**settings(gateway, "SASL_PLAINTEXT"), **sasl(SCRAM_512, "ben")}
        admin = AdminClient(client)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("cleo", info, b"a password")])
        made["cleo"].result(30)
        found = admin.describe_user_scram_credentials().result(30)
        assert {user: len(each.scram_credential_infos) for user, each in found.items()} == {
            "anna": 2, "ben": 1, "cleo": 1,
        }  # fmt: skip
        assert AdminClient({**client, **sasl(SCRAM_256, "cleo", "a password")}).list_topics(timeout=30)
        with pytest.raises(rdkafka.KafkaException, match="no user 'nobody'"):
            admin.describe_user_scram_credentials(["nobody"])["nobody"].result(30)
        low = UserScramCredentialUpsertion("anna", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100), b"x")
        with pytest.raises(rdkafka.KafkaException, match="100 iterations"):
            admin.alter_user_scram_credentials([low])["anna"].result(30)
    with Admin(cluster=cluster_address) as ours:
        assert ours.alter_user_scram_credentials([UserScramCredentialDeletion("anna", SCRAM_256)]) == {"anna": None}
        assert ours.describe_user_scram_credentials(["anna"])["anna"]["credential_infos"] == [
            {"mechanism": 2, "iterations": 4096}
        ]
        assert "no user" in ours.describe_user_scram_credentials(["nobody"])["nobody"]["error"]
    run("delete", "anna")
    assert "cleo" in run("list")
    assert [each.user for each in list_credentials(cluster.store)] == ["ben", "cleo"]
    changes = read_changes(cluster)
    assert {(each.who, each.target, each.source) for each in changes} >= {("User:ben", "user cleo", "gateway")}
    assert [each.target for each in changes if each.source == "cli"] == [
        "user anna",
        "user ben",
        "user anna",
        "user anna",
    ]
    rows = cluster.store.read(lambda connection: connection.execute(sa.select(t.scram_credential)).all())
    assert PASSWORD not in str([*rows, *changes]) and PASSWORD.encode() not in b"".join(
        value for row in rows for value in row if isinstance(value, bytes)
    )
