"""`spark-log topic erase`, as its users meet it."""

import json
from pathlib import Path

from typer.testing import CliRunner

from spark_log.cli.main import app
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.cli.conftest import run
from tests.support.records import append_keyed, rows_of


def test_erase_asks_reports_and_never_prints_a_key(cluster: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(b"secret-a\nsecret-b\n")
    with Cluster.open(str(cluster)) as opened:
        topic, log = create_topic(opened, "t", 2), ClientLog(opened)
        for partition in (0, 1):
            append_keyed(log, topic, (b"secret-a", b"1"), (b"stays", b"2"), (b"secret-c", b"3"), partition=partition)
        log.close()
        asked = ["topic", "erase", "t", "--keys-file", str(keys), "--purge", "--cluster", str(cluster)]
        refused = CliRunner().invoke(app, asked, input="n\n")
        assert refused.exit_code == 1
        assert "versions of the Delta table\ncannot be read any more" in refused.stderr
        assert "Erase all records of 2 keys from t?" in refused.stderr
        assert len(rows_of(log, topic)) == 6

        done = CliRunner().invoke(app, asked, input="y\n")
        assert done.exit_code == 0, done.output
        assert "Erased 2 records of 2 keys from t: replaced 2 of 2 segments in 2 partitions" in done.stdout
        assert "Purged 2 old files" in done.stdout
        shown = run(
            "topic", "erase", "t", "-k", "secret-c", "--end", "0=-1", "--end", "1=1", "-y", "--json", cluster=cluster
        )
        facts = json.loads(shown.stdout)
        assert (facts["keys"], facts["records"], facts["ends"], facts["purged"]) == (1, 1, {"0": 3, "1": 1}, None)
        assert [(p, o) for p, o, _, _ in rows_of(log, topic)] == [(0, 1), (1, 1), (1, 2)]
        for wrong, code, text in (
            (
                ("t", "-k", "secret-c", "--end", "9"),
                1,
                "end: offset 9 of t-0 is not between 0 and its high watermark 3",
            ),
            (("u", "-k", "secret-c"), 1, "'u'"),
            (("t",), 2, "expected --key or --keys-file"),
            (("t", "--keys-file", "-"), 2, "need --yes"),
            (("t", "-k", "!secret-c", "--base64"), 1, "key 1 is not base64"),
            (("t", "--keys-file", str(tmp_path / "none")), 1, "No such file"),
        ):
            failed = run("topic", "erase", *wrong, *(() if code == 2 else ("-y",)), cluster=cluster)
            assert failed.exit_code == code, failed.output
            assert text in " ".join(failed.stderr.split()), failed.stderr
            assert "secret" not in failed.output
        assert "secret" not in refused.output + done.output + shown.output
