"""The keys of an erase, from text and files; errors never repeat a key."""

import base64
import io
from types import SimpleNamespace

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.maintenance.erase.erase_keys import keys_of


def test_keys_come_from_arguments_and_a_file(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_bytes("\ufeffa\r\nb c \n\nä\n".encode())
    assert keys_of(["x", ""], str(file), encoded=False).to_pylist() == [b"x", b"", b"a", b"b c ", "ä".encode()]
    file.write_bytes(base64.b64encode(b"\0\xff") + b"\n" + base64.b64encode(b"line\nbreak"))
    assert keys_of(["AA=="], str(file), encoded=True).to_pylist() == [b"\0", b"\0\xff", b"line\nbreak"]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a\nb")))
    assert keys_of([], "-", encoded=False).to_pylist() == [b"a", b"b"]
    assert keys_of([], None, encoded=False).to_pylist() == []


@pytest.mark.parametrize(
    ("given", "content", "encoded", "message"),
    [
        (["c2VjcmV0", "secret!"], b"", True, "key 2 is not base64"),
        ([], b"c2VjcmV0\nsecret!", True, "keys file: line 2 is not base64"),
        ([], b"ok\nsecret\xff", False, "keys file: line 2 is not UTF-8"),
        (["secret\udcff"], b"", False, "key: not UTF-8"),
    ],
)
def test_error_for_an_invalid_key_does_not_repeat_it(tmp_path, given, content, encoded, message):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(InvalidOptionError, match=message) as raised:
        keys_of(given, str(file), encoded=encoded)
    assert "secret" not in str(raised.value)


def test_missing_file_of_keys_is_refused(tmp_path):
    with pytest.raises(InvalidOptionError, match=r"keys file .*No such file"):
        keys_of([], str(tmp_path / "none"), encoded=False)
