"""Parses and compares Protobuf schemas.

A schema is a .proto text, or the descriptor of a file in base64, which Confluent's Python client sends. A .proto text
is compiled with protoc of the package grpcio-tools.
"""

import base64
import binascii
import copy
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from time import thread_time
from typing import Any

from spark_log.errors import IncompatibleSchemaError, InvalidSchemaError, needing
from spark_log.log.columns.evolution import evolve
from spark_log.registry.schemas import SchemaText

_USER = "a Protobuf schema in the registry"
_FILE = "schema.proto"
_COMPILE_S_MAX = 60
_COMPILED_BYTES_MAX = 16 << 20
"""The limit of a file's descriptor. Each field in it has the full name of its type, so that a text with long names is
much shorter.
"""
_NAME_BYTES_MAX = 200
_MESSAGES_MAX, _COMPARE_S_MAX = 2_000, 10.0
"""The maximum number of messages of a file to compare, and the maximum CPU time of the comparison."""
_IMPORT = re.compile(r'\bimport\s+(?:public\s+|weak\s+)?"([^"]+)"\s*;')
_INSTALLED = ("google/protobuf/", "google/type/")
"""The folders whose files schemas import without a reference. Python packages contain the descriptors of the files."""


def canonical(schema: SchemaText) -> str:
    """Return the file's descriptor in base64, without the file's name. Equal for a .proto text and its descriptor.

    Raises InvalidSchemaError, and InvalidConfigurationError if a Python package is missing.
    """
    file = copy.deepcopy(_files(schema)[-1])
    file.ClearField("name")
    file.ClearField("source_code_info")
    for field in _fields([*file.message_type], [*file.extension]):
        if field.json_name == _default_json_name(field.name):
            field.ClearField("json_name")
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def serialized(schema: SchemaText) -> str:
    """Return the file's descriptor in base64, as Confluent's Python client requests it (format=serialized)."""
    return base64.b64encode(_files(schema)[-1].SerializeToString()).decode()


def column_source(schema: SchemaText, message: str = "") -> str:
    """Return the text of `protobuf_schema` for the message with this full name, or for the file's first message."""
    from spark_log.log.columns.protobuf.schema import protobuf_schema

    files = _files(schema)
    if not message:
        if not files[-1].message_type:
            raise InvalidSchemaError("schema: the .proto file has no message")
        message = _full_name(files[-1].package, files[-1].message_type[0].name)
    return protobuf_schema(message, _set_of(files))


def problems(reader: SchemaText, writer: SchemaText) -> list[str]:
    """Return the reasons why `reader` cannot read records of `writer` (`schema_types.problems`).

    Each message of `writer` must exist, and its columns and its wire format must be compatible. Raises
    InvalidSchemaError if the comparison takes too long.
    """
    from spark_log.log.columns.protobuf.schema import MessageColumns
    from spark_log.registry.protobuf_wire import WireComparison

    differences: list[str] = []
    files, written_files = _files(reader), _files(writer)
    messages, written_messages = _messages(files[-1]), _messages(written_files[-1])
    if max(len(messages), len(written_messages)) > _MESSAGES_MAX:
        return [f"the schemas have more than {_MESSAGES_MAX:,} messages, and cannot be compared"]
    sides = [(_pool_of(each), MessageColumns()) for each in (files, written_files)]
    end_s = thread_time() + _COMPARE_S_MAX
    wire = WireComparison()
    for name in written_messages:
        if thread_time() > end_s:
            raise InvalidSchemaError("the schemas have so many messages and fields that they cannot be compared")
        if name not in messages:
            differences.append(f"message {name} is missing")
            continue
        pair = [pool.FindMessageTypeByName(name) for pool, _ in sides]
        differences += wire.problems(*pair)
        try:
            columns = [types.fields(message) for message, (_, types) in zip(pair, sides, strict=True)]
        except InvalidSchemaError:
            continue  # a message without columns, such as one that contains itself
        try:
            evolve(*columns)
        except IncompatibleSchemaError as error:
            differences.append(f"message {name}: {error}")
    return differences


@lru_cache(maxsize=8)  # an entry may take several MiB
def _files(schema: SchemaText) -> tuple[Any, ...]:
    """Return the descriptors (FileDescriptorProto) of all files that the schema imports, each after its own imports,
    and of the schema itself as the last one. Raises InvalidSchemaError if they are not a valid schema.
    """
    with needing(_USER, "registry"):
        from google.protobuf import descriptor_pool  # noqa: F401
    files: dict[str, Any] = {}
    for name, text in schema.imports:
        _add(files, name, text)
    _add(files, "", schema.text)
    try:
        _pool_of(files.values())
    except (KeyError, TypeError) as error:
        raise InvalidSchemaError(f"not a Protobuf schema: {error}") from error
    return tuple(files.values())


def _pool_of(files: Iterable[Any]) -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
        pool.FindFileByName(file.name)
    return pool


def _add(files: dict[str, Any], name: str, text: str) -> None:
    """Add the file, after the files of Python packages that it imports. `name` is empty for the schema itself."""
    file = _decoded(text)
    imported = _IMPORT.findall(text) if file is None else file.dependency
    for each in imported:
        _add_installed(files, each)
    if file is None:
        file = _compiled(text, name or _FILE, list(files.values()))
    else:
        file.name = name or file.name or _FILE
    files[file.name] = file


def _add_installed(files: dict[str, Any], name: str) -> None:
    if name in files or not name.startswith(_INSTALLED):
        return
    try:
        descriptor = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR
    except ImportError as error:
        raise InvalidSchemaError(f"not a Protobuf schema: import {name!r}: there is no such file") from error
    for each in descriptor.dependencies:
        _add_installed(files, each.name)
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    files[name] = FileDescriptorProto.FromString(descriptor.serialized_pb)


def _decoded(text: str) -> Any | None:
    """Return the descriptor if the text is the descriptor of a file in base64, otherwise None."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None


def _compiled(text: str, name: str, imports: list[Any]) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with needing(_USER, "registry"):
        import_module("grpc_tools")
    if not name.isprintable() or len(name.encode()) > _NAME_BYTES_MAX or {"", ".", ".."} & {*name.split("/")}:
        raise InvalidSchemaError(
            f"not a Protobuf schema: the path {name[:100]!r} has to be relative, of at most {_NAME_BYTES_MAX} bytes"
        )
    with tempfile.TemporaryDirectory(prefix="spark-log-proto-") as folder:
        source = Path(folder, "source", name)
        source.parent.mkdir(parents=True)
        source.write_text(text)
        known, compiled = Path(folder, "imports"), Path(folder, "compiled")
        known.write_bytes(_set_of(imports))
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}/source", f"--descriptor_set_in={known}"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={compiled}", str(source)],  # protoc takes a bare @name as options
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InvalidSchemaError(f"not a Protobuf schema: protoc took more than {_COMPILE_S_MAX} s") from error
        if done.returncode:
            reason = " ".join(done.stderr.replace(f"{folder}/", "").split())
            if done.returncode < 0 or not re.search(rf"{re.escape(source.name)}:\d+:\d+:", reason):  # not of the schema
                failed = subprocess.CalledProcessError(done.returncode, command)
                reason = f"protoc ended with exit code {done.returncode}: {reason}"
                raise InvalidSchemaError(f"not a Protobuf schema: {reason[:500]}") from failed
            raise InvalidSchemaError(f"not a Protobuf schema: {reason[:500]}")
        if compiled.stat().st_size > _COMPILED_BYTES_MAX:
            raise InvalidSchemaError(
                f"not a Protobuf schema: its descriptor has more than {_COMPILED_BYTES_MAX:,} bytes: use shorter names"
            )
        [file] = FileDescriptorSet.FromString(compiled.read_bytes()).file
        return file


def _set_of(files: Any) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return bytes(FileDescriptorSet(file=files).SerializeToString())


def _messages(file: Any) -> dict[str, Any]:
    """Return the messages of the file, including nested ones, by their full names."""
    messages: dict[str, Any] = {}
    waiting = [(_full_name(file.package, each.name), each) for each in file.message_type]
    while waiting:
        name, message = waiting.pop(0)
        if not message.options.map_entry:
            messages[name] = message
            waiting += [(f"{name}.{each.name}", each) for each in message.nested_type]
    return messages


def _fields(messages: list[Any], fields: list[Any]) -> Iterator[Any]:
    yield from fields
    for message in messages:
        yield from _fields([*message.nested_type], [*message.field, *message.extension])


def _default_json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _full_name(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name
