"""The declared dependencies, and the modules that a client imports."""

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]


def test_each_declared_dependency_is_pinned_to_a_version_in_its_range() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = [Requirement(text) for text in project["dependencies"]]
    declared += [Requirement(text) for group in project["optional-dependencies"].values() for text in group]
    pins = {}
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = version
    for requirement in declared:
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), str(requirement)


def imported_by(program: str, *arguments: str) -> set[str]:
    """The top-level modules that a fresh interpreter has imported after a program."""
    code = program + "\nimport sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


SPARK = {"pyspark", "py4j", "delta"}


def test_importing_the_clients_loads_neither_spark_nor_delta_nor_pandas() -> None:
    imported = imported_by("from spark_log import Admin, Cluster, Consumer, Producer\nimport spark_log.clients.kafka")
    assert imported & (SPARK | {"alembic", "deltalake", "pandas", "psycopg", "rich", "typer"}) == set()


def test_sending_sealing_and_publishing_load_no_pandas(tmp_path: Path) -> None:
    program = """
import os, sys
from spark_log import Cluster, Producer, create_topic

with Cluster.init(sys.argv[1]) as cluster:
    create_topic(cluster, "clicks", 2)
with Producer(cluster=sys.argv[1]) as producer:
    assert producer.send("clicks", value=b"x").get(timeout=60).offset == 0
    for number in range(20_000):
        producer.send("clicks", os.urandom(100), b"%d" % number if number % 3 else None)
    producer.flush()
    producer.send("clicks", value=b"y").get(timeout=60)
"""
    assert imported_by(program, str(tmp_path / "log")) & {"deltalake", "pandas"} == {"deltalake"}


def test_using_the_clients_and_the_command_line_loads_no_spark(tmp_path: Path) -> None:
    program = """
import sys
from spark_log import Admin, Cluster, Consumer, Producer, create_topic
from spark_log.cli.main import app

address = sys.argv[1]
with Cluster.init(address) as cluster:
    create_topic(cluster, "clicks")
with Producer(cluster=address) as producer:
    assert producer.send("clicks", value=b"x").get(timeout=60).offset == 0
with Consumer("clicks", cluster=address, auto_offset_reset="earliest") as consumer:
    assert consumer.poll(timeout_ms=10_000)
admin = Admin(cluster=address)
assert admin.list_topics() == ["clicks"]
admin.close()
app(["topic", "list", "--cluster", address], standalone_mode=False)
"""
    assert imported_by(program, str(tmp_path / "log")) & SPARK == set()
