"""`spark-log delta install`, with Spark's real resolver and a Maven mirror on this machine."""

import socket
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_log.cli.main import app
from spark_log.errors import DeltaNotInstalledError
from spark_log.spark import delta_jars
from tests.support.server_processes import running_server

_POM = "<project><modelVersion>4.0.0</modelVersion>{}<dependencies>{}</dependencies></project>"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def fill(folder: Path) -> dict[str, Path]:
    """Lay `folder` out as a repository: Delta's package depends on all other JARs. Maps names in JARS to paths."""
    places = {}
    coordinates = dict(map(_coordinate, delta_jars.JARS))
    for name, (group, artifact, version) in coordinates.items():
        place = folder / group.replace(".", "/") / artifact / version / f"{artifact}-{version}"
        place.parent.mkdir(parents=True)
        others = [other for other in coordinates if other != name] if artifact.startswith("delta-spark") else []
        needed = "".join(f"<dependency>{_xml(*coordinates[other])}</dependency>" for other in others)
        Path(f"{place}.pom").write_text(_POM.format(_xml(group, artifact, version), needed))
        places[name] = Path(f"{place}.jar")
        places[name].write_bytes((delta_jars.spark_jars_folder() / name).read_bytes())
    return places


def _coordinate(name: str) -> tuple[str, tuple[str, str, str]]:
    group, _, rest = name.removesuffix(".jar").partition("_")
    artifact, _, version = rest.rpartition("-")
    return name, (group, artifact, version)


def _xml(group: str, artifact: str, version: str) -> str:
    return f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"


pytestmark = pytest.mark.slow


def install(folder: Path, mirror: str) -> Result:
    return CliRunner().invoke(
        app, ["delta", "install", "--jars-dir", str(folder)], env={"DEFAULT_ARTIFACT_REPOSITORY": mirror}
    )


def test_jars_are_downloaded_once_from_the_mirror_and_verified(tmp_path: Path) -> None:
    places = fill(tmp_path / "mirror")
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "io.delta_delta-storage-4.3.0.jar").write_bytes(b"of an older Delta")
    (jars / "io.delta_delta-kernel-api-4.4.0.jar").write_bytes(b"damaged")
    (jars / "mine.jar").write_bytes(b"mine")
    before = {file.name: file.read_bytes() for file in jars.iterdir()}
    altered = places["io.delta_delta-spark_4.2_2.13-4.4.0.jar"]
    content = altered.read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "mirror")))
    with running_server(server) as mirror:
        url = f"{mirror}/"
        altered.write_bytes(content + b"altered")
        refused = install(jars, url)
        assert refused.exit_code == 1
        assert "spark-log: io.delta_delta-spark_4.2_2.13-4.4.0.jar has not the expected SHA-256" in refused.stderr
        assert {file.name: file.read_bytes() for file in jars.iterdir()} == before

        altered.write_bytes(content)
        done = install(jars, url)
        assert done.exit_code == 0, done.output
    assert f"downloading {url}io/delta/delta-spark_4.2_2.13/4.4.0/delta-spark_4.2_2.13-4.4.0.jar" in done.stderr
    assert {file.name for file in jars.iterdir()} == {*delta_jars.JARS, "mine.jar"}
    assert delta_jars.missing_in(jars) == []
    settings = dict(line.split() for line in done.stdout.splitlines())
    assert settings == {
        **delta_jars.DELTA_SETTINGS,
        "spark.jars": ",".join(str(jars / name) for name in delta_jars.JARS),
    }

    again = install(jars, url)  # the mirror is gone
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert "has all of them already" in again.stderr


def test_jars_are_refused_for_a_spark_that_cannot_load_them(tmp_path: Path) -> None:
    delta_jars.check_spark(tmp_path)
    (tmp_path / "spark-core_2.13-4.3.0.jar").touch()
    with pytest.raises(DeltaNotInstalledError, match=r"are for Spark 4.2, and this is Spark 4.3.0"):
        delta_jars.check_spark(tmp_path)


def test_missing_network_or_permission_is_an_error_before_any_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/maven"
        away = install(tmp_path / "jars", url)
    assert away.exit_code == 1
    said = away.stderr.splitlines()[-1]
    assert said.startswith(f"spark-log: the mirror {url} (DEFAULT_ARTIFACT_REPOSITORY) could not be reached")
    assert "Connection refused" in said
    assert list((tmp_path / "jars").iterdir()) == []

    forbidden = install(Path("/proc/spark-log"), url)  # not even root writes there
    assert forbidden.exit_code == 1
    assert "cannot write to /proc/spark-log" in forbidden.stderr
    assert "--jars-dir" in forbidden.stderr
