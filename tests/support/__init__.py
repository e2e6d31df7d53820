"""The helpers of the tests, by subject.

| Subject | Modules |
|---|---|
| waits, threads | `waiting` |
| records, topics, schemas | `records`, `topics`, `schemas`, `kafka_batches` |
| metadata stores, versions of spark-log | `stores`, `postgres`, `store_gaps`, `versions`, `release_cluster` |
| replicas, what a cluster has on disk | `replicas`, `lineage`, `resources` |
| tables | `table_checks`, `iceberg`, `iceberg_spark_process` |
| maintenance, mirrors | `compaction_model`, `mirroring` |
| groups | `group_members`, `consumer_members`, `classic_members`, `share_members` |
| transactions | `bank`, `transaction_programs` |
| gateway | `server_processes`, `gateway_wire`, `costly_requests`, `security` |
| Kafka's programs | `kafka_programs` |
| console | `console`, `browser` |
| Spark | `spark`, `data_source`, `spark_surface`, `class_archive` |
| child processes | `python_process`, `children`, `child_programs`, `fork_rig` |
| faults | `disk_faults`, `s3`, `postgres_proxy`, `patroni_cluster`, `failover_load` |
| documentation, operation | `pages`, `page_process`, `operations` |
"""
