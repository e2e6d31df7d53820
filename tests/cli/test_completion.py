"""Tab completion, by the protocol in which shells ask for it."""

import os
import subprocess
import sys

import pytest

from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.python_process import run_process


@pytest.fixture
def address(cluster_address, tmp_path):
    with Cluster.init(cluster_address, log_dir=str(tmp_path / "log-dir")) as cluster:
        for name in ("events", "event_errors", "orders"):
            create_topic(cluster, name)
        add_broker(cluster, 2, [str(tmp_path / "d2")])
    return cluster_address


SCRIPT = ("-c", "import sys; sys.argv[0] = 'spark-log'; from spark_log.cli.main import app; app()")
"""The script spark-log: the shells' functions name it."""


def answered(variables):
    """The script's answer to a shell; nothing else may be printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPARK_LOG_CLUSTER", raising=False)
        for name, text in variables.items():
            patch.setenv(name, text)
        done = run_process(*SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def bash(line, **more):
    words = line.split(" ")
    asked = {"_SPARK_LOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return answered({**asked, **more}).split()


def test_names_are_completed_in_bash_and_zsh(address):
    here = {"SPARK_LOG_CLUSTER": address}
    assert bash("spark-log topic describe eve", **here) == ["event_errors", "events"]
    assert bash(f"spark-log topic alter --cluster {address} o") == ["orders"]
    assert bash("spark-log broker start --id ", **here) == ["1", "2"]
    zsh = {"_SPARK_LOG_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "spark-log partition truncations --topic ev"}
    assert answered({**zsh, **here}).strip() == """_arguments '*: :(("event_errors"\n"events"))'"""


def test_configs_are_completed_without_a_cluster():
    assert bash("spark-log topic create t -c retention.") == ["retention.ms", "retention.bytes"]
    assert bash("spark-log cluster config --unset log.merge") == ["log.merge.interval.ms"]


@pytest.mark.parametrize("where", ["", "/nowhere", "postgresql://nobody@127.0.0.1:1/none", "host:9092", "\x07"])
def test_without_a_cluster_nothing_is_completed_and_nothing_is_printed(where, tmp_path):
    assert bash("spark-log topic describe e", SPARK_LOG_CLUSTER=where) == []
    assert not os.listdir(tmp_path)


def test_completion_imports_neither_the_store_nor_arrow(tmp_path):
    Cluster.init(str(tmp_path / "c")).close()
    program = "from spark_log.cli import completion, main; import sys, types;"
    program += f" completion.topics(types.SimpleNamespace(params={{'cluster': {str(tmp_path / 'c')!r}}}), '');"
    program += " print([name for name in ('sqlalchemy', 'pyarrow', 'kafka', 'psycopg') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
