"""The Protobuf message `Flight {optional string carrier = 1; optional int32 delay = 2;}`, without protoc."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", syntax="proto2")
    message = file.message_type.add(name="Flight")
    for number, (name, kind) in enumerate({"carrier": 9, "delay": 5}.items(), 1):  # TYPE_STRING, TYPE_INT32
        message.field.add(name=name, number=number, label=1, type=kind)
    return file


FLIGHT_DESCRIPTOR_SET: bytes = descriptor_pb2.FileDescriptorSet(file=[_file()]).SerializeToString()


def flight_bytes(carrier: str, delay: int) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    flight = message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))(carrier=carrier, delay=delay)
    return bytes(flight.SerializeToString())
