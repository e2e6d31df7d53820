"""`spark_log.gateway.serve`: a gateway beside a program, which ends with it."""

import socket
import threading
from pathlib import Path

import kafka
import pytest

from spark_log.errors import InvalidConfigurationError
from spark_log.gateway import serve
from tests.support.python_process import PythonProcess
from tests.support.topics import make, stored
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.on_sqlite

PROGRAM = """
import sys, time
from spark_log.gateway import serve
with serve(sys.argv[1]) as servers:
    print(servers, flush=True)
    time.sleep(600)
"""


def listens(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_gateway_serves_during_the_block_without_the_address_of_the_store_in_its_command(cluster, cluster_address):
    """The address may have a password, and other users of the machine see commands with their arguments."""
    make(cluster, "t")
    with serve(cluster) as servers:
        producer = kafka.KafkaProducer(bootstrap_servers=servers)
        producer.send("t", b"v").get(LIMIT_S)
        producer.close()
        [child] = [
            pid for pid in Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
            if "gateway" in command_of(pid)
        ]  # fmt: skip
        assert cluster_address not in command_of(child)
    assert stored(cluster, "t") == {0: ["v"]}
    assert not listens(servers)


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def test_it_ends_when_its_program_is_killed(cluster, cluster_address):
    program = PythonProcess("-c", PROGRAM, cluster_address, text=True, stdout=-1)
    servers = program.stdout.readline().strip()
    assert listens(servers)
    program.kill()
    program.wait()
    assert program.stdout.read() == "", "the gateway has the program's stdout no more"
    wait_until(lambda: not listens(servers))


def test_a_gateway_that_cannot_start_is_an_error(cluster):
    with pytest.raises(InvalidConfigurationError, match="exit code 2"), serve(cluster, "--no-such-option"):
        pass
