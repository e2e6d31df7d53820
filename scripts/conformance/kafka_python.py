"""Integration tests of kafka-python, from its sdist."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

from scripts.conformance.results import Result, output_of
from scripts.conformance.servers import gateway

KAFKA_PYTHON = "3.0.12"

_SERVICE = '''
class ExternalService:
    """A broker that was started elsewhere."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = dump_logs = open


class SpawnedService:
    pass
'''


def kafka_python(cache: Path) -> list[Result]:
    """The integration tests. The sdist leaves out test/service.py, of which only a part is needed here."""
    folder = cache / f"kafka_python-{KAFKA_PYTHON}"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    if not (folder / "complete").exists():
        sdist = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", f"kafka-python=={KAFKA_PYTHON}"]
        subprocess.run([*pip, "download", "-d", str(cache), *sdist], check=True)
        with tarfile.open(cache / f"{folder.name}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
        needed = ["pytest-mock", "lz4", "python-snappy", "cramjam", "zstandard"]
        subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "needed"), *needed], check=True)
        (folder / "test" / "__init__.py").touch()
        (folder / "test" / "service.py").write_text(_SERVICE)
        (folder / "kafka-bin").mkdir()
        (folder / "complete").touch()
    options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "ignore", "--timeout", "60"]
    options += ["-q", "-rA", "--show-capture", "no", "--tb", "no", "-o", "log_level=WARNING"]
    with gateway() as address:
        output = output_of(
            [sys.executable, "-m", "pytest", "test/integration", *options],
            folder,
            KAFKA_URI=f"kafka://{address}",
            KAFKA_VERSION="4.1.0",
            KAFKA_ROOT=str(folder / "kafka-bin"),
            PYTHONPATH=f"{folder}:{folder / 'needed'}",
        )
    found = re.findall(r"^(PASSED|FAILED|ERROR) test/integration/\w+\.py::(\S+)", output, re.MULTILINE)
    if not found:
        raise RuntimeError(f"kafka-python's tests did not run:\n{output[-4000:]}")
    # The tests of TLS start a broker of their own from files that the sdist leaves out.
    return [Result("kafka-python", test, word.lower()) for word, test in sorted(found, key=lambda pair: pair[1])
            if not test.startswith("TestSSLConnection")]  # fmt: skip
