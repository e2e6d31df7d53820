"""kafka.structs, and what the groups of kafka-python 2 are described with."""

from kafka.structs import *  # noqa: F403

from spark_log.admin.kafka_python_2 import GroupInformation as GroupInformation
from spark_log.admin.kafka_python_2 import MemberInformation as MemberInformation
