"""kafka.structs, and the classes that describe groups in kafka-python 2."""

from kafka.structs import *  # noqa: F403

from spark_log.clients.admin.kafka_python_2 import GroupInformation as GroupInformation
from spark_log.clients.admin.kafka_python_2 import MemberInformation as MemberInformation
