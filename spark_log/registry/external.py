"""Reads a schema registry outside of the cluster by its REST API. Versions and ids are cached and not read again."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, ParamSpec, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request

from spark_log import clock
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
    SparkLogError,
    redact,
)
from spark_log.registry import bounded_requests
from spark_log.registry.references import with_references
from spark_log.registry.schemas import Reference, RegisteredSchema, Schema, SchemaText
from spark_log.remembered import BoundedDict, Remembered

P = ParamSpec("P")
T = TypeVar("T")

_RETRIABLE = (408, 429)
"""HTTP's Request Timeout and Too Many Requests."""
_ANSWER_BYTES_MAX = 4 << 20
_REMEMBERED_CHARACTERS_MAX = 16 << 20
"""The limits of characters of remembered versions, and of remembered schemas by id: servers choose their length."""
_SUBJECT_CHARACTERS_MAX = 16 << 20
"""The limit of characters of all versions of a subject with their imports. Typed columns, which contain them, have the
same limit.
"""
_URLS_MAX, _URL_CHARACTERS_MAX = 1_000, 2_000
_answered: BoundedDict[str, str] = BoundedDict(_URLS_MAX)
"""The address that answered last, by the text of all addresses, if that text is not too long."""
_SILENCE_S = 60.0
"""The time for which an address that has not answered is not asked again."""
_silent_until_s: BoundedDict[str, float] = BoundedDict(_URLS_MAX)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


def _remembered(function: Callable[P, T]) -> Remembered[P, T]:
    return Remembered(function, lambda value, url, *_: len(repr(value)) + len(url), _REMEMBERED_CHARACTERS_MAX)


def find_subject(url: str, subject: str, version: int | None) -> tuple[RegisteredSchema, list[tuple[int, SchemaText]]]:
    """Return the version, or the latest one for None, and all versions as pairs of schema id and text.

    `url` has one or more addresses, separated by commas. Raises SchemaRegistryUnavailableError if none answers in time,
    SchemaNotFoundError, SchemaRegistryError if the registry refuses the request, InvalidConfigurationError if an
    address is not http:// or https://, and InvalidSchemaError if there are too many or too long schemas.
    """
    with _expected_answers(url), bounded_requests.time_limit():
        numbers = _get(url, f"/subjects/{quote(subject, safe='')}/versions")
        versions, texts, characters = [], [], 0
        for number in [*numbers, version] if version is not None and version not in numbers else numbers:
            registered = _version(url, subject, number)
            text = _text(url, registered.schema)
            characters += len(text.text) + sum(len(name) + len(imported) for name, imported in text.imports)
            if characters > _SUBJECT_CHARACTERS_MAX:
                raise InvalidSchemaError(
                    f"subject {subject!r}: its versions and their imports have more than"
                    f" {_SUBJECT_CHARACTERS_MAX:,} characters: use a subject with fewer versions"
                )
            versions.append(registered)
            texts.append((registered.id, text))
        chosen = versions[-1] if version is None else next(each for each in versions if each.version == version)
        return chosen, texts


@_remembered
def find_id(url: str, schema_id: int) -> SchemaText:
    """Return the schema with this id, with its imports. Raises the errors of `find_subject`."""
    path = f"/schemas/ids/{schema_id}"
    with _expected_answers(url), bounded_requests.time_limit():
        return _text(url, _schema(schema_id, _serialized(url, path)))


@contextmanager
def _expected_answers(url: str) -> Iterator[None]:
    """Raise SchemaRegistryUnavailableError for unexpected answers: the address may be that of another server."""
    try:
        yield
    except SparkLogError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SchemaRegistryUnavailableError(
            f"schema registry {redact(url)}: an answer that is not one of a schema registry ({error!r})"
        ) from error


@_remembered
def _version(url: str, subject: str, version: int) -> RegisteredSchema:
    path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
    answer = _serialized(url, path)
    return RegisteredSchema(subject, version, _schema(answer["id"], answer))


def _serialized(url: str, path: str) -> Any:
    """Return the schema at the path. For Protobuf, request a descriptor: a .proto text would have to be compiled."""
    answer = _get(url, path)
    return _get(url, f"{path}?format=serialized") if answer.get("schemaType") == "PROTOBUF" else answer


def _schema(schema_id: int, answer: Any) -> Schema:
    references = [Reference(each["name"], each["subject"], each["version"]) for each in answer.get("references") or ()]
    return Schema(schema_id, answer.get("schemaType", "AVRO"), answer["schema"], tuple(references))


def _text(url: str, schema: Schema) -> SchemaText:
    def find(reference: Reference) -> Schema:
        return _version(url, reference.subject, reference.version).schema

    return with_references(schema, find)


def _get(urls: str, path: str) -> Any:
    """Return the answer of the first address that answers. The addresses are separated by commas; the one that answered
    last comes first, since the others may take all of the time limit.

    An address that does not answer is not asked again for a while, because each of many partitions may need a schema.
    """
    failure: Exception | None = None
    addresses = [url.strip().rstrip("/") for url in urls.split(",")]
    for address in sorted(addresses, key=lambda each: each != _answered.get(urls)):
        if not address.startswith(("http://", "https://")):
            raise InvalidConfigurationError(
                f"schema.registry.url: expected http:// or https://, got {redact(address)!r}"
            )
        began_s = clock.monotonic_s()
        if began_s < _silent_until_s.get(address, 0):
            failure = failure or TimeoutError(f"no answer lately: it is left alone for {_SILENCE_S:g} s")
            continue
        try:
            request = Request(address + path, headers={"Accept": _ACCEPT})
            answer = json.loads(bounded_requests.send(request, _ANSWER_BYTES_MAX))
            _note_answer(urls, address)
            return answer
        except HTTPError as error:
            if error.code < 500 and error.code not in _RETRIABLE:
                _note_answer(urls, address)
                raise _refused(address, error) from error
            failure = error
        except (URLError, HTTPException, OSError, ValueError) as error:
            failure = error
            if clock.monotonic_s() - began_s >= bounded_requests.SILENCE_S_MAX and len(address) <= _URL_CHARACTERS_MAX:
                _silent_until_s[address] = clock.monotonic_s() + _SILENCE_S
    raise SchemaRegistryUnavailableError(f"schema registry {redact(urls)}: {redact(str(failure))}") from failure


def _note_answer(urls: str, address: str) -> None:
    if len(urls) <= _URL_CHARACTERS_MAX:
        _answered[urls] = address


def _refused(address: str, error: HTTPError) -> SchemaRegistryError:
    try:
        answer = json.loads(error.read(_ANSWER_BYTES_MAX))
        code, message = int(answer["error_code"]), str(answer["message"])
    except (KeyError, TypeError, ValueError, OSError):
        code, message = error.code, str(error)
    kind = SchemaNotFoundError if error.code == 404 else SchemaRegistryError
    return kind(f"schema registry {redact(address)}: {message}", code)
