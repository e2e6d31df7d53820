"""Implements Confluent's REST API of the schema registry as an ASGI application.

The application keeps no state, so any number of processes may serve one cluster.
"""

import json
import logging
from collections.abc import Callable, Collection
from time import thread_time
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spark_log.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SparkLogError,
    redact,
)
from spark_log.gateway.http.requests import (
    Sender,
    declared_length,
    host_allowed,
    limited,
    sender_of,
    too_large,
)
from spark_log.gateway.limits.networks import network_of
from spark_log.gateway.registry.places import Places
from spark_log.registry.registry import DEFAULT_MODE, Registry, Version
from spark_log.registry.schemas import TYPES, Reference, Schema

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

_PATH_CHARACTERS_MAX = 4_000
"""The longest path. Python refuses to parse numbers of more than 4,300 digits."""
_BODY_BYTES_MAX = 2 * 1024 * 1024
"""The largest body. A schema may have 1,048,576 characters; its quotes and line breaks are escaped in the body."""
_LOGGER = logging.getLogger(__name__)

_INCOMPATIBLE, _INVALID_SCHEMA, _INVALID_SUBJECT, _STORE_ERROR = 409, 42201, 42208, 50001
_NO_OWN_COMPATIBILITY, _NO_OWN_MODE = 40408, 40409


class Call(NamedTuple):
    """A decoded request, without its connection."""

    path: dict[str, Any]
    query: dict[str, str]
    body: Any

    @property
    def subject(self) -> str | None:
        """The subject in the path, or None in paths for all subjects."""
        return self.path.get("subject")

    @property
    def version(self) -> Version:
        text = str(self.path["version"])
        # any other text is refused by the registry, with the error of an invalid version
        return int(text) if text.lstrip("-").isdecimal() else text  # type: ignore[return-value]

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def page(self, items: list[Any]) -> list[Any]:
        """Return the items that the parameters `offset` and `limit` select. A negative limit selects all."""
        offset, limit = int(self.query.get("offset", "0")), int(self.query.get("limit", "-1"))
        return items[offset:] if limit < 0 else items[offset : offset + limit]

    def schema(self) -> tuple[str, str, list[Reference]]:
        """Return the text, type and references of the schema in the body. Raises InvalidSchemaError if it has none."""
        try:
            given = self.body.get("references") or ()
            references = [Reference(each["name"], each["subject"], each["version"]) for each in given]
            return str(self.body["schema"]), str(self.body.get("schemaType") or "AVRO"), references
        except (AttributeError, KeyError, TypeError) as error:
            raise InvalidSchemaError("Empty schema: the body needs `schema`") from error

    def positive(self, name: str) -> int | None:
        """Return a positive number of the body, or None if it is missing, or not positive: some clients send -1."""
        found = self.body.get(name)
        return found if isinstance(found, int) and found > 0 else None


Handler = Callable[[Registry, Call], Any]


def application(registry: Registry, hosts: Collection[str] | None = None) -> ASGIApp:
    """Return the ASGI application that serves the registry. `hosts` are allowed in header Host; None allows any."""
    places = Places()

    def route(path: str, **handlers: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            network, size = network_of(request.client.host if request.client else ""), _body_size(request)
            with places.request(network):
                async with places.body(network, size):
                    try:
                        body = await request.body()
                    except ClientDisconnect:
                        return Response()
                    async with places.answer(network, size):
                        handler = handlers[request.method.lower()]
                        response, cpu_s = await run_in_threadpool(_timed_answer, registry, handler, request, body)
                        places.charge(network, cpu_s)
                        return response

        return Route(path, endpoint, methods=[method.upper() for method in handlers])

    routes = [route(path, **handlers) for path, handlers in _ROUTES]
    served = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = _refusal(Request(scope), hosts)
        await (
            served(scope, limited(receive, _BODY_BYTES_MAX), send) if refused is None else refused(scope, receive, send)
        )

    return guarded


def _refusal(request: Request, hosts: Collection[str] | None) -> Response | None:
    """Return a refusal if a page of another site may have caused the request, or if it is too large; otherwise None."""
    host = request.headers.get("host", "")
    if hosts is not None and not host_allowed(host, hosts):
        return _error(400, 400, "Header Host does not name this machine")
    if sender_of(dict(request.headers), {host}) is Sender.OTHER_SITE:
        return _error(403, 403, "The request comes from a page of another site")
    if len(request.scope["path"]) > _PATH_CHARACTERS_MAX:
        return _error(414, 414, "The path is too long")
    if _body_size(request) > _BODY_BYTES_MAX:
        return _error(413, 413, too_large(_BODY_BYTES_MAX))
    return None


def _body_size(request: Request) -> int:
    """Return the bytes of the body. If the client does not declare them, return the largest number that is allowed."""
    if "transfer-encoding" in request.headers:
        return _BODY_BYTES_MAX
    return declared_length(request.headers.get("content-length"))


def _timed_answer(registry: Registry, handler: Handler, request: Request, body: bytes) -> tuple[Response, float]:
    """Return the response, and the CPU time of this thread for it in seconds."""
    begin_s = thread_time()
    return _answer(registry, handler, request, body), thread_time() - begin_s


def _answer(registry: Registry, handler: Handler, request: Request, body: bytes) -> Response:
    # Starlette's routes would ignore a line break at the end
    if not request.scope["path"].isprintable() or request.path_params.get("subject") == "":
        return _error(422, _INVALID_SUBJECT, "The specified subject is not a valid subject")
    try:
        call = Call(dict(request.path_params), dict(request.query_params), json.loads(body) if body else None)
        return _response(handler(registry, call))
    except SparkLogError as error:
        status, code = _codes(error)
        return _error(status, code, redact(str(error)))
    except (RecursionError, ValueError) as error:  # neither JSON nor a number
        return _error(400, 400, str(error))
    except Exception as error:  # a bug: its text may hold anything
        _LOGGER.exception("%s %s failed", request.method, request.scope["path"])
        return _error(500, _STORE_ERROR, f"An error of the registry: {type(error).__name__}")


def _codes(error: SparkLogError) -> tuple[int, int]:
    """Return the HTTP status and the error code of an error."""
    if isinstance(error, SchemaRegistryError):
        return int(str(error.error_code)[:3]), error.error_code
    if isinstance(error, IncompatibleSchemaError):
        return 409, _INCOMPATIBLE
    if isinstance(error, InvalidSchemaError):
        return 422, _INVALID_SCHEMA
    return 500, _STORE_ERROR


def _error(status: int, code: int, message: str) -> Response:
    return _response({"error_code": code, "message": message}, status)


def _response(content: Any, status: int = 200) -> Response:
    text = content.decode() if isinstance(content, bytes) else json.dumps(content)
    return Response(text, status, media_type=CONTENT_TYPE)


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.status_code, f"HTTP {error.status_code} {error.detail}")


def _subjects(registry: Registry, call: Call) -> Any:
    everything = call.flag("deleted") or call.flag("deletedOnly") or call.flag("deleted_only")
    found = registry.subjects(call.query.get("subjectPrefix", ""), deleted=everything)
    if call.flag("deletedOnly") or call.flag("deleted_only"):
        live = {*registry.subjects()}
        found = [name for name in found if name not in live]
    return call.page(found)


def _delete_subject(registry: Registry, call: Call) -> Any:
    return registry.delete_subject(call.path["subject"], permanent=call.flag("permanent"))


def _lookup(registry: Registry, call: Call) -> Any:
    text, type_, references = call.schema()
    found = registry.lookup(call.path["subject"], text, type_, references, deleted=call.flag("deleted"))
    return {"subject": found.subject, "version": found.version, "id": found.id, **_schema(registry, call, found.schema)}


def _versions(registry: Registry, call: Call) -> Any:
    subject, only = call.path["subject"], call.flag("deletedOnly") or call.flag("deleted_only")
    found = registry.versions(subject, deleted=call.flag("deleted") or only)
    if only:
        live = {*registry.versions(subject)} if subject in registry.subjects(subject) else set()
        found = [version for version in found if version not in live]
    return call.page(found)


def _register(registry: Registry, call: Call) -> Any:
    text, type_, references = call.schema()
    id_, version = call.positive("id"), call.positive("version")
    return {"id": registry.register(call.path["subject"], text, type_, references, id=id_, version=version).id}


def _version(registry: Registry, call: Call) -> Any:
    found = registry.version(call.path["subject"], call.version, deleted=call.flag("deleted"))
    return {"subject": found.subject, "version": found.version, "id": found.id, **_schema(registry, call, found.schema)}


def _version_text(registry: Registry, call: Call) -> Any:
    return registry.version(call.path["subject"], call.version, deleted=call.flag("deleted")).schema.text.encode()


def _delete_version(registry: Registry, call: Call) -> Any:
    return registry.delete_version(call.path["subject"], call.version, permanent=call.flag("permanent"))


def _referenced_by(registry: Registry, call: Call) -> Any:
    return registry.referring_ids(call.path["subject"], call.version)


def _id(registry: Registry, call: Call) -> Any:
    return _schema(registry, call, registry.schema(call.path["id"]))


def _id_text(registry: Registry, call: Call) -> Any:
    return registry.schema(call.path["id"]).text.encode()


def _id_subjects(registry: Registry, call: Call) -> Any:
    found = registry.subjects_of(call.path["id"], deleted=call.flag("deleted"))
    return call.page(sorted({subject for subject, _ in found}))


def _id_versions(registry: Registry, call: Call) -> Any:
    found = registry.subjects_of(call.path["id"], deleted=call.flag("deleted"))
    return call.page([{"subject": subject, "version": version} for subject, version in found])


def _schema(registry: Registry, call: Call, schema: Schema) -> dict[str, Any]:
    text = schema.text
    if schema.type == "PROTOBUF" and call.query.get("format") == "serialized":
        from spark_log.registry.protobuf_schemas import serialized

        text = serialized(registry.with_imports(schema))
    answer: dict[str, Any] = {"schema": text}
    if schema.type != "AVRO":  # Confluent's registry leaves the type out for Avro, the only one of its first versions
        answer["schemaType"] = schema.type
    if schema.references:
        answer["references"] = [each._asdict() for each in schema.references]
    return answer


def _config(registry: Registry, call: Call) -> Any:
    level = registry.compatibility(call.subject)
    if level is None and call.flag("defaultToGlobal"):
        level = registry.compatibility()
    if level is None:
        raise SchemaNotFoundError(
            f"Subject '{call.subject}' does not have subject-level compatibility configured", _NO_OWN_COMPATIBILITY
        )
    return {"compatibilityLevel": level}


def _set_config(registry: Registry, call: Call) -> Any:
    level = str(_setting(call, "compatibility")).upper()
    registry.set_compatibility(level, call.subject)
    return {"compatibility": level}


def _delete_config(registry: Registry, call: Call) -> Any:
    before = _config(registry, call)
    registry.set_compatibility(None, call.subject)
    return before


def _mode(registry: Registry, call: Call) -> Any:
    mode = registry.mode(call.subject)
    if mode is None and call.flag("defaultToGlobal"):
        mode = registry.mode() or DEFAULT_MODE
    if mode is None:
        raise SchemaNotFoundError(f"Subject '{call.subject}' does not have subject-level mode configured", _NO_OWN_MODE)
    return {"mode": mode}


def _set_mode(registry: Registry, call: Call) -> Any:
    mode = str(_setting(call, "mode")).upper()
    registry.set_mode(mode, call.subject)
    return {"mode": mode}


def _delete_mode(registry: Registry, call: Call) -> Any:
    before = _mode(registry, call)
    registry.set_mode(None, call.subject)
    return before


def _setting(call: Call, name: str) -> Any:
    if not isinstance(call.body, dict) or name not in call.body:
        raise ValueError(f"the body needs `{name}`")
    return call.body[name]


def _compatibility(registry: Registry, call: Call) -> Any:
    text, type_, references = call.schema()
    version = call.version if "version" in call.path else None
    found = registry.test_compatibility(call.path["subject"], text, type_, references, version)
    return {"is_compatible": not found, **({"messages": found} if call.flag("verbose") else {})}


_ROUTES: list[tuple[str, dict[str, Handler]]] = [
    ("/", {"get": lambda _registry, _call: {}}),
    ("/subjects", {"get": _subjects}),
    ("/subjects/{subject:path}/versions", {"get": _versions, "post": _register}),
    ("/subjects/{subject:path}/versions/{version}/schema", {"get": _version_text}),
    ("/subjects/{subject:path}/versions/{version}/referencedby", {"get": _referenced_by}),
    ("/subjects/{subject:path}/versions/{version}", {"get": _version, "delete": _delete_version}),
    ("/subjects/{subject:path}", {"post": _lookup, "delete": _delete_subject}),
    ("/schemas/types", {"get": lambda _registry, _call: [*TYPES]}),
    ("/schemas/ids/{id:int}", {"get": _id}),
    ("/schemas/ids/{id:int}/schema", {"get": _id_text}),
    ("/schemas/ids/{id:int}/subjects", {"get": _id_subjects}),
    ("/schemas/ids/{id:int}/versions", {"get": _id_versions}),
    ("/config", {"get": _config, "put": _set_config, "delete": _delete_config}),
    ("/config/{subject:path}", {"get": _config, "put": _set_config, "delete": _delete_config}),
    ("/mode", {"get": _mode, "put": _set_mode}),
    ("/mode/{subject:path}", {"get": _mode, "put": _set_mode, "delete": _delete_mode}),
    ("/compatibility/subjects/{subject:path}/versions", {"post": _compatibility}),
    ("/compatibility/subjects/{subject:path}/versions/{version}", {"post": _compatibility}),
    ("/contexts", {"get": lambda _registry, _call: ["."]}),
]
