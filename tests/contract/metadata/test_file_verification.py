"""Verification of files: missing and damaged ones are named, and a log dir is relocated only to its own files."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_log import Producer
from spark_log.cli.main import app
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.facts.topics import describe_topics
from tests.support.records import LARGE
from tests.support.replicas import topic_on
from tests.support.topics import make
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.delta


def run(address, *arguments):
    return CliRunner().invoke(app, [*arguments, "--cluster", address])


def command(address, *arguments, code=0):
    """The JSON that a command prints."""
    done = run(address, *arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
def damaged(tmp_path):
    """A cluster with two files and an inline record; the first file is missing, the second has one other byte."""
    address = str(tmp_path / "cluster")
    with Cluster.init(address) as cluster, Producer(cluster=address) as producer:
        make(cluster, "t", inline_max_bytes="2000", delta_max_lag_ms="-1")
        for value in (LARGE, LARGE[::-1], "inline"):
            producer.send("t", value.encode()).get(LIMIT_S)
        missing, other = sorted(Path(address).rglob("_segments/*/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        missing.unlink()
        data = bytearray(other.read_bytes())
        data[len(data) // 2] ^= 1
        other.write_bytes(data)
        yield cluster, address, other


def test_missing_and_damaged_files_are_named_with_their_offsets(damaged):
    _, address, other = damaged
    done = run(address, "store", "verify-files")
    assert done.exit_code == 1
    assert "t-0 offsets 0 to 0: " in done.output and "missing" in done.output
    assert "2 files" in done.output and "1 missing or damaged" in done.output
    [replica] = command(address, "store", "verify-files", "--checksums", "--topic", "t", code=1)
    assert [(bad["start_offset"], bad["end_offset"], bad["problem"]) for bad in replica["problems"]] == [
        (0, 1, "missing"),
        (1, 2, "has another checksum"),
    ]
    other.write_bytes(b"short")
    [replica] = command(address, "store", "verify-files", code=1)
    assert "has 5 bytes, not " in replica["problems"][1]["problem"]
    shutil.move(Path(address) / "broker-1", Path(address) / "elsewhere")
    [replica] = command(address, "store", "verify-files", code=1)
    assert all("broker-1" in bad["problem"] for bad in replica["problems"]) and len(replica["problems"]) == 2
    assert run(address, "store", "verify-files", "--topic", "unknown").exit_code == 1


def test_a_log_dir_is_relocated_only_to_its_own_files(damaged, tmp_path):
    cluster, address, _ = damaged
    add_broker(cluster, 2, [str(tmp_path / "second")])
    topic_on(cluster, "there", [[2]])
    first = f"{address}/broker-1"
    for from_, to, reason in (
        (str(tmp_path / "unknown"), first, "there is none at"),
        (first, str(tmp_path / "empty"), "has no spark_log_dir.json"),
        (first, str(tmp_path / "second"), "overlaps"),
    ):
        done = run(address, "broker", "relocate", "--from", from_, "--to", to)
        assert done.exit_code == 1 and reason in " ".join(done.output.split()), done.output
    shutil.copytree(tmp_path / "second", tmp_path / "moved")
    assert (
        run(
            address, "broker", "relocate", "--from", str(tmp_path / "second"), "--to", str(tmp_path / "moved")
        ).exit_code
        == 0
    )
    assert [info.uri.rpartition("/")[2] for info in cluster.log_dirs().values()] == ["broker-1", "moved"]
    [there] = describe_topics(cluster, ["there"])
    assert there.partitions[0].leader_epoch == 1, "what a client has written to the old place is not appended"
    done = run(address, "broker", "relocate", "--from", first, "--to", str(tmp_path / "moved"))
    assert "overlaps" in done.output
