"""The admin client with the calls of kafka-python 3."""

import kafka
from kafka import OffsetSpec, TopicPartition
from kafka.admin import AlterConfigOp

admin = kafka.KafkaAdminClient(bootstrap_servers=["localhost:9092"])
admin.create_topics({"three": {"num_partitions": 2, "configs": {"retention.ms": "-1"}}}, wait_for_metadata=True)
admin.wait_for_topics(["three"])
with kafka.KafkaProducer(bootstrap_servers=["localhost:9092"]) as producer:
    for number in range(6):
        producer.send("three", b"%d" % number, partition=number % 2)
zero, one = TopicPartition("three", 0), TopicPartition("three", 1)
assert admin.list_partition_offsets({zero: OffsetSpec.LATEST, one: OffsetSpec.EARLIEST})[zero].offset == 3
assert admin.alter_group_offsets("g", {zero: kafka.OffsetAndMetadata(2)})[zero] is kafka.errors.NoError
assert admin.list_group_offsets("g")["g"][zero].offset == 2
assert admin.reset_group_offsets("g", {zero: OffsetSpec.EARLIEST})[zero]["offset"] == 0
assert [group["group_id"] for group in admin.list_groups()] == ["g"]
assert admin.describe_groups(["g"])["g"]["group_state"] == "Empty"
assert admin.delete_group_offsets("g", [zero])[zero] is kafka.errors.NoError
assert admin.delete_groups(["g"]) == {"g": "OK"}
topic = kafka.admin.ConfigResource("TOPIC", "three", {"cleanup.policy": (AlterConfigOp.SET, "compact,delete")})
assert admin.alter_configs([topic]) == {"topic": {"three": "OK"}}
assert set(admin.describe_configs([topic])["topic"]["three"]) == {"cleanup.policy"}
assert admin.reset_configs([topic]) == {"topic": {"three": "OK"}}
admin.create_partitions({"three": {"count": 3}})
assert [p["leader_id"] for p in admin.describe_topics(["three"])[0]["partitions"]] == [1, 1, 1]
assert admin.describe_log_dirs()[0]["broker"] == 1
read, allow = kafka.admin.ACLOperation.READ, kafka.admin.ACLPermissionType.ALLOW
pattern = kafka.admin.ResourcePattern(kafka.admin.ResourceType.TOPIC, "three")
acl = kafka.admin.ACL("User:anna", "*", read, allow, pattern)
assert admin.create_acls([acl]) == {"succeeded": [acl], "failed": []}
assert admin.describe_acls(acl) == ([acl], kafka.errors.NoError)
assert admin.delete_acls([acl]) == [(acl, [acl], kafka.errors.NoError)]
admin.delete_records({zero: 1})
admin.delete_topics(["three"])
admin.close()
