"""The tests of a job's arguments name no cluster: it is in the environment."""

from collections.abc import Callable

import pytest

Refused = Callable[[Callable[..., object], object], str]


@pytest.fixture(autouse=True)
def cluster_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOG_CLUSTER", "/data/log")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """A function that returns the message with which a parser refuses arguments."""

    def refused(parse: Callable[..., object], arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            parse(arguments)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refused
