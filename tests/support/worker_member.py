"""A member of a group whose leader assigns, request by request: as a worker of Kafka Connect."""

from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from spark_log.gateway.protocol.wire import Message
from tests.support.gateway_wire import WireConnection

_MEMBER_ID_REQUIRED = 79
JOIN = 9
"""Version."""


class WorkerMember:
    """`send_join` and `send_sync` do not wait for the answer, `joined` and `synced` do. Others send one request and
    return its error code.
    """

    join_version, sync_version, beat_version = JOIN, 5, 4

    def __init__(
        self, wire: WireConnection, group_id: str = "g", *, kind: str = "connect", protocol: str = "sessioned",
        instance_id: str | None = None, session_timeout_ms: int = 30_000, rebalance_timeout_ms: int = 30_000,
    ) -> None:  # fmt: skip
        self.wire, self.group_id, self.instance_id = wire, group_id, instance_id
        self.member_id, self.generation, self.metadata = "", -1, b"metadata"
        self.others: list[str] = []
        """As leader: the member ids."""
        self._kind, self._protocol = kind, protocol
        self._session_timeout_ms, self._rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms

    def join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self._kind,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=self._protocol, metadata=self.metadata)],
        )

    def reserve(self) -> int:
        """Ask for a member id, if it has none. The group then waits until the member joins with it."""
        if self.member_id or self.instance_id is not None:
            return 0
        answer = self.wire.exchange(self.join_request(), self.join_version)
        self.member_id = answer.member_id
        return 0 if answer.error_code == _MEMBER_ID_REQUIRED else int(answer.error_code)

    def send_join(self) -> None:
        assert self.reserve() == 0
        self.wire.send(self.join_request(), self.join_version)

    def joined(self) -> Message:
        answer = self.wire.receive(self.join_request(), self.join_version)
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.others = [each.member_id for each in answer.members]
        return answer

    def join(self) -> int:
        self.send_join()
        return int(self.joined().error_code)

    def sync_request(self, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        given = [kind(member_id=key, assignment=value) for key, value in assignments.items()]
        return SyncGroupRequest(**self._me(), protocol_type=self._kind, protocol_name=self._protocol, assignments=given)

    def send_sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        self.wire.send(self.sync_request(assignments or {}), self.sync_version)

    def synced(self) -> bytes | int:
        """The assignment, or the error code."""
        answer = self.wire.receive(self.sync_request({}), self.sync_version)
        return int(answer.error_code) or bytes(answer.assignment)

    def assign(self, text: str) -> bytes | int:
        """As leader: `text` and the place of each member in their list."""
        self.send_sync({key: f"{text}{number}".encode() for number, key in enumerate(self.others)})
        return self.synced()

    def beat(self, wire: WireConnection | None = None) -> int:
        return int((wire or self.wire).exchange(self.heartbeat(), self.beat_version).error_code)

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(**self._me())

    def send_beat(self) -> None:
        self.wire.send(self.heartbeat(), self.beat_version)

    def receive_beat(self) -> int:
        return int(self.wire.receive(self.heartbeat(), self.beat_version).error_code)

    def leave(self) -> int:
        kind = LeaveGroupRequest.MemberIdentity
        me = kind(member_id=self.member_id, group_instance_id=self.instance_id, reason="")
        answer = self.wire.exchange(LeaveGroupRequest(group_id=self.group_id, members=[me]), 5)
        return int(answer.error_code or answer.members[0].error_code)

    def _me(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }


def settle(*members: WorkerMember) -> list[bytes | int]:
    """All dynamic members join one generation, and sync; the assignments."""
    for member in members:
        member.reserve()
    for member in members:
        member.send_join()
    for member in members:
        assert member.joined().error_code == 0
    return assign(*members)


def assign(*members: WorkerMember) -> list[bytes | int]:
    """All members of a generation sync; the assignments, each "a" with the member's place."""
    [leader] = [member for member in members if member.others]
    for member in members:
        if member is not leader:
            member.send_sync()
    assigned = leader.assign("a")
    return [assigned if member is leader else member.synced() for member in members]
