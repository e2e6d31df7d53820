"""Serves the parts of a request for which the client has rights, by the rules of the API (`rights.py`)."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.access.access import Access
from spark_log.gateway.access.refusals import refusal, refused_element
from spark_log.gateway.access.rights import CODES, Each, Every, Rule, Shown, Whole
from spark_log.gateway.api import Api, Client
from spark_log.gateway.protocol.error_codes import NONE
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services

_OPERATION_NOT_ATTEMPTED = 55
_UNKNOWN_TOPIC_ID = 100
_NAMES_WAIT_S_MAX = 1.0
"""The maximum time until a client asks again for topics whose names could not be read."""


async def authorized(api: Api, services: Services, request: Message, client: Client) -> Message | None:
    """Let the API's handler answer the parts that the client may request, and add refusals of the other parts.

    Raises ConnectionAbortedError instead of a refusal if the client expects no response (Produce with acks=0).
    """
    response, refused = await _served(api, services, request, client)
    if refused and api.name == "Produce" and request.acks == 0:
        raise ConnectionAbortedError("a produce request without acknowledgement was refused")
    return response


async def _served(api: Api, services: Services, request: Message, client: Client) -> tuple[Message | None, bool]:
    """Return the response, and whether it contains refusals."""
    rules, access = api.rights, client.access
    refusals: list[Refused] = []
    # the handler of a pipelined API takes the lock again: each time the requests take it in their order
    async with client.order if api.pipelined else nullcontext():
        code = await services.compute(_refused_whole, rules, request, access)
        if code is not None:
            return await services.compute(refusal, request, code), True
        names: Mapping[uuid.UUID, str] = {}
        ids = {each.topic_id for rule in rules if isinstance(rule, Each) for each in _with_ids(request, rule.field)}
        try:
            if ids:
                names = await services.call(services.topics.names, ids)
        except MetadataStoreUnavailableError:
            if api.name != "Fetch":
                raise
            return await _without_records(request), False
        empty = False
        for rule in rules:
            if isinstance(rule, Each):
                empty |= await services.compute(_take_refused, rule, request, access, names, refusals)
    if refusals and hasattr(request, "max_wait_ms"):
        request.max_wait_ms = 0  # a fetch with an error is answered at once
    response = refusal(request, NONE) if empty else await api.handler(services, request, client)
    if response is not None:
        await services.compute(_complete, rules, response, access, refusals)
    return response, bool(refusals)


Refused = tuple[Each, Message | None, list[Message]]
"""A rule, the struct that contains the refused elements of a request, and the response's elements that refuse them. The
struct is None for arrays of the request itself."""


def _refused_whole(rules: Sequence[Rule], request: Message, access: Access) -> int | None:
    """Return the error code with which the whole request is refused, or None."""
    for rule in rules:
        if isinstance(rule, Whole):
            resource = rule.resource(request)
            if resource is None or access.allows(rule.operation, *resource):
                continue
            if not (rule.or_any_topic and access.allows_any_topic(Operation.WRITE)):
                return CODES[resource[0]]
        elif isinstance(rule, Every):
            names = getattr(request, rule.field) or ()
            if not all(access.allows(rule.operation, rule.resource_type, name) for name in names):
                return CODES[rule.resource_type]
    return None


def _complete(rules: Sequence[Rule], response: Message, access: Access, refusals: Sequence[Refused]) -> None:
    """Remove the elements that the client may not see from a response, and add the refusals."""
    for rule in rules:
        if isinstance(rule, Shown):
            _hide(rule, response, access)
    groups: dict[str, Message] = {}
    for rule, parent, refused in refusals:
        if parent is None:
            getattr(response, rule.answers).extend(refused)
            continue
        assert rule.within is not None
        if not groups:
            groups = {group.group_id: group for group in getattr(response, rule.within)}
        getattr(groups[parent.group_id], rule.answers).extend(refused)


def _with_ids(request: Message, field: str) -> Sequence[Message]:
    return [each for each in getattr(request, field, None) or () if getattr(each, "topic_id", None) is not None]


async def _without_records(request: Message) -> Message:
    """Answer a Fetch by topic ids while the topics' names, and so the rights on them, cannot be read. The answer has no
    error and no records, and waits like that of a fetch without records; then the client asks again.
    """
    await asyncio.sleep(min(request.max_wait_ms / 1000, _NAMES_WAIT_S_MAX))
    response = refusal(request, NONE)
    response.responses = [refused_element(request, ["responses"], topic, NONE) for topic in request.topics]
    return response


def _take_refused(
    rule: Each,
    request: Message,
    access: Access,
    names: Mapping[uuid.UUID, str],
    refusals: list[Refused],
) -> bool:
    """Move refused elements from the request to `refusals`. Return True if the handler must not run, because one
    refused element prevents all others, or an array that is empty now would request everything.
    """
    nothing_left = False
    parents = [request] if rule.within is None else list(getattr(request, rule.within) or ())
    path = [rule.answers] if rule.within is None else [rule.within, rule.answers]
    for parent in parents:
        elements = getattr(parent, rule.field, None)
        if not elements:
            continue
        allowed: list[Any] = []
        refused: list[tuple[Any, int]] = []
        for element in elements:
            resource_type, name = rule.resource(request, element)
            by_id = None if name else getattr(element, "topic_id", None)
            if by_id is not None:
                name = names.get(by_id)
            may = not name or access.allows(rule.operation, resource_type, name)
            if may or (rule.or_cluster and access.allows_on_cluster(rule.operation)):
                allowed.append(element)
            else:
                unknown = by_id is not None and rule.unknown_if_by_id
                refused.append((element, _UNKNOWN_TOPIC_ID if unknown else CODES[resource_type]))
        if not refused:
            continue
        if rule.together:
            refused += [(element, _OPERATION_NOT_ATTEMPTED) for element in allowed]
            allowed = []
        nothing_left |= not allowed and (rule.together or rule.empty_means_all)
        setattr(parent, rule.field, allowed)
        made = [refused_element(request, path, element, code) for element, code in refused]
        refusals.append((rule, None if rule.within is None else parent, made))
    return nothing_left


def _hide(rule: Shown, response: Message, access: Access) -> None:
    if rule.or_cluster and access.allows_on_cluster(rule.operation):
        return
    for parent in [response] if rule.within is None else getattr(response, rule.within, None) or ():
        elements = getattr(parent, rule.field, None)
        if elements:
            shown = [each for each in elements if _may_see(rule, each, access)]
            setattr(parent, rule.field, shown)


def _may_see(rule: Shown, element: Message, access: Access) -> bool:
    name = getattr(element, rule.name)
    return not name or access.allows(rule.operation, rule.resource_type, name)
