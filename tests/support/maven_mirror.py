"""A Maven repository on this machine, with the JARs that `make delta` has put beside Spark's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from spark_log.spark import delta_jars

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


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of `folder` over HTTP."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _coordinate(name: str) -> tuple[str, tuple[str, str, str]]:
    group, _, rest = name.removesuffix(".jar").partition("_")
    artifact, _, version = rest.rpartition("-")
    return name, (group, artifact, version)


def _xml(group: str, artifact: str, version: str) -> str:
    return f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
