"""The columns of each table, in a constant with the table's name in capitals: `PARTITION.leader`."""

from spark_log.metadata import tables as t

ACL = t.acl.c
BLOB = t.blob.c
BROKER = t.broker.c
CLIENT_QUOTA = t.client_quota.c
CLUSTER = t.cluster.c
COMMIT_TOKEN = t.commit_token.c
COMPACTION = t.compaction.c
CONSUMER_GROUP = t.consumer_group.c
GATEWAY = t.gateway.c
GROUP_MEMBER = t.group_member.c
GROUP_OFFSET = t.group_offset.c
GROUP_PARTITION = t.group_partition.c
LEASE = t.lease.c
LOG_DIR = t.log_dir.c
MIRROR_POSITION = t.mirror_position.c
CLASSIC_GROUP = t.classic_group.c
CLASSIC_MEMBER = t.classic_member.c
PARTITION = t.partition.c
PRODUCER = t.producer.c
PRODUCER_BATCH = t.producer_batch.c
PUBLICATION = t.publication.c
PUBLICATION_CURSOR = t.publication_cursor.c
PUBLICATION_INTENT = t.publication_intent.c
PUBLICATION_INTENT_CURSOR = t.publication_intent_cursor.c
QUOTA_USAGE = t.quota_usage.c
REASSIGNMENT = t.reassignment.c
REPLICA = t.replica.c
RETIRED_COPY = t.retired_copy.c
RETIRED_FILE = t.retired_file.c
RETIRED_REPLICA = t.retired_replica.c
SCHEMA = t.schema.c
SCRAM_CREDENTIAL = t.scram_credential.c
SEGMENT = t.segment.c
SPARK_BATCH = t.spark_batch.c
SUBJECT_CONFIG = t.subject_config.c
SUBJECT_VERSION = t.subject_version.c
TOPIC = t.topic.c
TRANSACTION = t.transaction.c
TRANSACTION_OFFSET = t.transaction_offset.c
TRANSACTION_SEGMENT = t.transaction_segment.c
TRUNCATION = t.truncation.c
WRITE_ID = t.write_id.c
