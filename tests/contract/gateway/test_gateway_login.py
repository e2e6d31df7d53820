"""TLS, SASL and the users of gateways: librdkafka, kafka-python, and clients that do it wrong."""

import itertools
import os
import random
import socket
import ssl
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import confluent_kafka as rdkafka
import kafka
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
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import alter_credentials, list_credentials, upsertion_of_password
from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.metadata import tables as t
from tests.support.certificates import Authority
from tests.support.gateway_wire import WireConnection, frame_of
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import wait_until

PASSWORD = "correct horse"
TOKEN = f"\0anna\0{PASSWORD}".encode()
"""PLAIN's."""
SCRAM_256, SCRAM_512 = (each.sasl_name for each in Mechanism)
FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM = 58, 34, 33
DAMAGED = 300


def put(cluster, user, password=PASSWORD):
    alter_credentials(cluster.store, [upsertion_of_password(user, each, password) for each in Mechanism])


def sasl(mechanism, user="anna", password=PASSWORD):
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def settings(gateway, protocol, **others):
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {"bootstrap.servers": gateway.address, "security.protocol": protocol, **named}


def send_and_read(client, topic):
    """One record through librdkafka: its value as a consumer reads it."""
    producer = rdkafka.Producer(client)
    producer.produce(topic, b"value", b"key")
    assert producer.flush(30) == 0
    consumer = rdkafka.Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    return message.value()


def refused(client):
    """Name of librdkafka's error when it cannot connect."""
    errors = []
    admin = AdminClient({**client, "error_cb": lambda error: errors.append(error.name()), "reconnect.backoff.ms": 2000})

    def told():
        admin.poll(0.1)
        return errors

    return wait_until(told)[0]


@contextmanager
def small_cluster(tmp_path):
    """On SQLite, for what the store takes no part in."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        make(cluster, "t", 1)
        put(cluster, "anna")
        yield cluster


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def plain_gateway(tmp_path):
    """SASL without TLS, on the loopback."""
    with small_cluster(tmp_path), GatewayProcess(
        tmp_path, str(tmp_path / "cluster"), "--sasl", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    ) as gateway:  # fmt: skip
        yield gateway
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


@pytest.mark.on_sqlite
def test_clients_produce_and_consume_over_tls_with_each_mechanism(cluster, cluster_address, tmp_path, authority):
    make(cluster, "t", 1)
    put(cluster, "anna")
    options = [*authority.issue("server", CN="gateway").options, "--sasl", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"]
    with GatewayProcess(tmp_path, cluster_address, *options) as gateway:
        client = settings(gateway, "SASL_SSL", ssl_ca_location=authority.certificate)
        for mechanism in ("PLAIN", SCRAM_256):
            assert AdminClient({**client, **sasl(mechanism)}).list_topics(timeout=30).topics
            assert refused({**client, **sasl(mechanism, password="wrong")}) == "_AUTHENTICATION"
        assert refused({**client, **sasl(SCRAM_512, user="nobody")}) == "_AUTHENTICATION"
        assert send_and_read({**client, **sasl(SCRAM_512)}, "t") == b"value"
        with kafka.KafkaAdminClient(
            bootstrap_servers=gateway.address, security_protocol="SASL_SSL", ssl_cafile=authority.certificate,
            sasl_mechanism=SCRAM_512, sasl_plain_username="anna", sasl_plain_password=PASSWORD,
        ) as admin:  # fmt: skip
            assert "t" in admin.list_topics()
        assert refused(settings(gateway, "PLAINTEXT")) in ("_TRANSPORT", "_ALL_BROKERS_DOWN")
        assert PASSWORD not in gateway.output
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def test_certificates_of_clients(tmp_path, authority):
    server, anna = authority.issue("server", CN="gateway"), authority.issue("anna", O="Shop", OU="Sales", CN="anna")
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("stranger", CN="anna")
    options = [*server.options, "--tls-client-ca", authority.certificate]
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:
        client = settings(gateway, "SSL", ssl_ca_location=authority.certificate)
        own = {"ssl.certificate.location": anna.certificate, "ssl.key.location": anna.key}
        assert send_and_read({**client, **own}, "t") == b"value"
        contexts = [authority.client_context(), authority.client_context(stranger)]
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            contexts.append(authority.client_context(anna))
            contexts[-1].set_ciphers("ALL:@SECLEVEL=0")
            contexts[-1].minimum_version = contexts[-1].maximum_version = version
        assert [alert(gateway, context) for context in contexts] == [
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "TLSV1_ALERT_DECRYPT_ERROR",  # its authority has the same name and another key
            "TLSV1_ALERT_PROTOCOL_VERSION",
            "TLSV1_ALERT_PROTOCOL_VERSION",
        ]
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            new = authority.client_context(anna)
            new.minimum_version = new.maximum_version = version
            with tls(gateway, new) as connection:
                assert connection.version() == version.name.replace("_", ".", 1).replace("v1_", "v1.")
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def alert(gateway, context):
    """Why the gateway refuses the handshake. In TLS 1.3, a client learns it after its own part."""
    with pytest.raises(ssl.SSLError) as error, tls(gateway, context) as connection:
        connection.recv(1)
    return error.value.reason


def tls(gateway, context):
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def test_a_new_certificate_is_used_by_new_connections_and_ends_none(tmp_path, authority):
    server = authority.issue("server", CN="first")
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *server.options) as gateway:
        context = authority.client_context()

        def name():
            with tls(gateway, context) as connection:
                return connection.getpeercert()["subject"][-1][0][1]

        with WireConnection(gateway.port, context=context) as older:
            assert name() == "first"
            renewed = authority.issue("renewed", CN="second")
            os.replace(renewed.key, server.key)  # for a moment they do not fit together, and the first stays
            os.replace(renewed.certificate, server.certificate)
            wait_until(lambda: name() == "second")
            assert [each.name for each in older.exchange(MetadataRequest(topics=None), 1).topics] == ["t"]


@pytest.mark.slow
def test_damaged_files_are_not_used_until_they_are_whole(tmp_path, authority):
    """The files as they are while something writes them: cut off, of another key, gone."""
    server, other = authority.issue("server", CN="first"), authority.issue("other", CN="other")
    strangers = Authority(tmp_path, "strangers")
    authorities = tmp_path / "clients.pem"
    authorities.write_bytes(Path(authority.certificate).read_bytes())
    options = [*server.options, "--tls-client-ca", str(authorities)]
    anna, stranger = authority.issue("anna", CN="anna"), strangers.issue("stranger", CN="stranger")
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:

        def name(issued=anna):
            context = ssl.create_default_context(cafile=authority.certificate)
            context.load_cert_chain(*issued)
            with WireConnection(gateway.port, context=context) as connection:
                connection.exchange(MetadataRequest(topics=None), 1)
                return connection._socket.getpeercert()["subject"][-1][0][1]

        key, certificate = Path(server.key).read_bytes(), Path(server.certificate).read_bytes()
        trusted = authorities.read_bytes()
        damages = [
            (server.certificate, certificate[: len(certificate) // 2]),
            (server.key, key[:-40]),
            (server.key, Path(other.key).read_bytes()),
            (server.certificate, None),
            (str(authorities), trusted[:-30]),
        ]
        for path, damaged in damages:
            whole, refusals = Path(path).read_bytes(), gateway.output.count("are not used")
            Path(path).unlink() if damaged is None else Path(path).write_bytes(damaged)
            wait_until(lambda least=refusals: gateway.output.count("are not used") > least, f"{path}: not looked at")
            assert name() == "first"
            Path(path).write_bytes(whole)
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            name(stranger)
        authorities.write_bytes(trusted + Path(strangers.certificate).read_bytes())
        Path(server.certificate).write_bytes(Path(other.certificate).read_bytes())
        Path(server.key).write_bytes(Path(other.key).read_bytes())

        def exchanged():
            with suppress(ssl.SSLError, ConnectionError, AssertionError):
                return name(stranger) == "other"

        wait_until(exchanged, "the files are not used")
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


def test_processes_that_share_a_port_share_its_certificates(tmp_path, authority):
    options = [*authority.issue("server", CN="gateway").options, "--workers", "2"]
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:
        client = settings(gateway, "SSL", ssl_ca_location=authority.certificate)
        assert send_and_read(client, "t") == b"value"


def test_errors_name_the_file(tmp_path, authority):
    server = authority.issue("server", CN="gateway")
    locked = authority.issue("locked", passphrase=b"x", CN="gateway")
    with small_cluster(tmp_path):
        for files, message in (
            ([*locked], "passphrase"),
            ([server.certificate, authority.issue("other", CN="x").key], "--tls-key"),
            ([str(tmp_path / "missing"), server.key], "missing"),
        ):
            options = ["--cluster", str(tmp_path / "cluster"), "--tls-cert", files[0], "--tls-key", files[1]]
            done = CliRunner().invoke(app, ["gateway", *options])
            assert (done.exit_code, message in done.output) == (1, True), done.output
