# spark-log. `make` lists the targets. Each installs what it needs; nothing outside .venv is touched
# except that root gets Debian's Java, PostgreSQL and etcd packages where they are missing.

VENV    := .venv
PYTHON  := $(CURDIR)/$(VENV)/bin/python
SOURCES := $(wildcard spark_log jobs pyspark_spark_log.py)
LINTED  := $(SOURCES) $(wildcard tests scripts benchmarks examples)

# Spark's Python workers must be the interpreter that drives them; this is $(PYTHON), started quicker.
export PYSPARK_PYTHON        := $(CURDIR)/$(VENV)/bin/spark-log-python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_IP        ?= 127.0.0.1
export PATH                  := $(CURDIR)/$(VENV)/bin:$(PATH)
# Tests start hundreds of interpreters, and each would compile spark_log anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests of one SparkSession, which uses two cores now and then, run in one of them. Others wait for disks and processes a
# quarter of their time: on 2 cores, 3 workers are faster than 2.
WORKERS ?= 3
SEED := $(or $(SEED),$(shell date +%s))
# Recipes that need Java start with this: an old default Java does not matter while a good one is installed.
WITH_JAVA = JAVA_HOME="$$(scripts/java.sh find)" && export JAVA_HOME &&

.DEFAULT_GOAL := help
.PHONY: help venv java postgres etcd promtool chromium delta class-archive check lint-docker docs format test test-slow test-two-stores test-spark41 test-spark43 test-long unit dist demo console screenshots bench bench-first bench-jobs bench-clients bench-replication bench-maintenance bench-streams bench-tables bench-typed bench-console bench-transactions bench-queues bench-scale bench-moves bench-soak bench-soak-postgresql bench-kafka bench-real-time bench-gateway proof conformance check-kubernetes image sbom clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

venv: $(VENV)/.installed  ## .venv with spark-log (editable) and all that develops, tests and demonstrates it

$(VENV)/.installed: pyproject.toml constraints.txt scripts/venv.sh
	scripts/venv.sh $(VENV)
	@touch $@

java:  ## Java 17 or later, where it is missing
	@scripts/java.sh install

postgres: | java  ## PostgreSQL's server programs, where they are missing
	@scripts/debian_package.sh postgresql

etcd: | postgres  ## etcd, where it is missing: the tests of failovers by Patroni start it
	@scripts/debian_package.sh etcd

promtool: | etcd  ## Prometheus' promtool, where it is missing
	@scripts/debian_package.sh promtool

chromium: | promtool  ## Debian's chromium, where it is missing
	@scripts/debian_package.sh chromium

delta: $(VENV)/.delta  ## the JARs of Delta and Avro, once, into the Spark of .venv

$(VENV)/.delta: $(VENV)/.installed spark_log/spark/delta_jars.py | java
	$(WITH_JAVA) $(PYTHON) -m spark_log delta install
	@touch $@

check: venv lint-docker docs  ## ruff, mypy --strict, the layers, the Dockerfile, the documentation
	ruff check $(LINTED)
	ruff format --check $(LINTED)
	mypy --strict $(SOURCES) tests/support examples benchmarks scripts
	lint-imports

lint-docker: venv  ## the Dockerfile
	hadolint docker/Dockerfile

docs: venv  ## the documentation site, in the folder site; no network
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

format: venv  ## let ruff format and fix what it can
	ruff format $(LINTED)
	ruff check --fix $(LINTED)

class-archive: $(VENV)/.class-archive  ## an archive of Spark's classes, with which the JVMs of tests start in half the time

$(VENV)/.class-archive: $(VENV)/.delta tests/support/class_archive.py | java
	$(WITH_JAVA) $(PYTHON) -m tests.support.class_archive
	@touch $@

# A lost worker ends the run, with the name of its test: pytest-xdist 3.8 waits forever after it has replaced one.
TEST_PROGRAMS := java postgres etcd promtool chromium delta class-archive
WITH_WORKERS = $(WITH_JAVA) scripts/with_test_folder.sh $(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0 --durations=30

test: venv  ## check, then every test that is not slow, in as many processes as WORKERS says
	$(MAKE) --no-print-directory -j 2 --output-sync=target check $(TEST_PROGRAMS)
	$(WITH_WORKERS) -m "not slow and not long and not spark41" $(PYTEST_ARGS)

test-slow: venv  ## the slow tests: programs killed under load, failovers, jobs, examples, the pages of the documentation
	$(MAKE) --no-print-directory -j 2 --output-sync=target $(TEST_PROGRAMS)
	$(WITH_WORKERS) -m "slow and not long and not spark41" $(PYTEST_ARGS)

test-two-stores: venv postgres  ## contract tests of appends, transactions, groups, maintenance, clients and gateways, with their topics in a data store
	SPARK_LOG_TEST_STORES=two scripts/with_test_folder.sh $(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup -m "not long" \
		$(addprefix tests/contract/,log transactions groups maintenance clients gateway) $(PYTEST_ARGS)

# Spark 4.2 has no Iceberg runtime: the tests read and write tables with a Spark 4.1 in a process of its own.
test-spark41: venv .venv41/.installed  ## the tests of Iceberg tables in Spark 4.1, in .venv41
	$(WITH_JAVA) scripts/with_test_folder.sh $(PYTHON) -m pytest -n 1 --dist loadgroup -m spark41 tests/contract/spark41 $(PYTEST_ARGS)

.venv41/.installed: scripts/venv41.sh | $(VENV)/.installed java
	$(WITH_JAVA) scripts/venv41.sh .venv41 $(PYTHON)
	@touch $@

# Delta's JARs are of Spark 4.2: the tests that need them are left out.
test-spark43: .venv43/.installed java  ## the tests of format("spark_log") on Spark 4.3, without Delta, in .venv43
	$(WITH_JAVA) PYSPARK_PYTHON=$(CURDIR)/.venv43/bin/spark-log-python PATH=$(CURDIR)/.venv43/bin:$$PATH \
		scripts/with_test_folder.sh python -m pytest -n $(WORKERS) --dist loadgroup -m "not long and not delta_jars" tests/spark tests/contract/spark $(PYTEST_ARGS)

.venv43/.installed: pyproject.toml constraints.txt scripts/venv.sh
	scripts/venv.sh .venv43 4.3.0
	@touch $@

test-long: venv etcd  ## the wide random searches and 20 failovers of PostgreSQL; SEED=<number> repeats one
	@echo "SEED=$(SEED)"
	$(PYTHON) -m pytest -m long -o faulthandler_timeout=3600 -n $(WORKERS) --hypothesis-seed=$(SEED) $(PYTEST_ARGS)

unit: venv  ## the fast tests only
	$(PYTHON) -m pytest tests/unit $(PYTEST_ARGS)

dist: venv  ## the sdist, and the wheel built from it, into dist/
	$(PYTHON) -m build --no-isolation

demo: venv java delta  ## the whole product on a real data set
	$(WITH_JAVA) $(PYTHON) scripts/demo.py

console: venv  ## the web console of the demo's cluster (or of SPARK_LOG_CLUSTER), until Ctrl-C
	@test -n "$(SPARK_LOG_CLUSTER)" || test -d .demo/cluster || { echo "no cluster: run make demo first, or set SPARK_LOG_CLUSTER"; exit 1; }
	$(PYTHON) -m spark_log console --cluster "$(or $(SPARK_LOG_CLUSTER),.demo/cluster)" --allow produce,offsets,configs,topics

screenshots: venv chromium  ## the pictures of the console's pages in docs
	$(PYTHON) scripts/screenshots.py

bench: venv java postgres delta  ## how fast the log is
	$(WITH_JAVA) $(PYTHON) -m benchmarks log

bench-first: venv java  ## how long the first results of a session take
	$(WITH_JAVA) $(PYTHON) -m benchmarks first

bench-jobs: venv java  ## how fast the jobs produce and consume are
	$(WITH_JAVA) $(PYTHON) -m benchmarks jobs

bench-clients: venv postgres  ## how fast producer, consumer and groups are
	$(PYTHON) -m benchmarks clients

bench-replication: venv postgres  ## what replicas cost, and how fast failed ones are made good
	$(PYTHON) -m benchmarks replication

bench-maintenance: venv java postgres  ## how fast retention, merging and compaction are
	$(WITH_JAVA) $(PYTHON) -m benchmarks maintenance

bench-streams: venv java  ## how fast windowed aggregation is
	$(WITH_JAVA) $(PYTHON) -m benchmarks streams

bench-tables: venv java postgres delta  ## how fresh Delta tables are, what they and a coordinator cost, and reads of files and tail
	$(WITH_JAVA) $(PYTHON) -m benchmarks tables

bench-typed: venv java delta  ## what typed columns cost and bring
	$(WITH_JAVA) $(PYTHON) -m benchmarks typed

bench-console: venv postgres  ## the console's tail and searches beside pyarrow.compute; pages and scrapes of large clusters
	$(PYTHON) -m benchmarks console

bench-transactions: venv postgres  ## what transactions cost
	$(PYTHON) -m benchmarks transactions

bench-queues: venv postgres  ## how fast share groups are
	$(PYTHON) -m benchmarks queues

bench-scale: venv postgres  ## what each operation costs as the log grows; how many processes can append to one store
	$(PYTHON) -m benchmarks scale

bench-moves: venv postgres  ## appends to a topic that is moved to another store, and to others while a store is lost
	$(PYTHON) -m benchmarks.moves
	$(PYTHON) -m benchmarks.lost_store

bench-soak: venv java delta  ## an hour of producers, a group, a stream and all maintenance: does anything grow?
	$(WITH_JAVA) $(PYTHON) -m benchmarks.soak

bench-soak-postgresql: venv java delta postgres  ## the same on PostgreSQL
	$(WITH_JAVA) $(PYTHON) -m benchmarks.soak --postgresql

bench-kafka: venv java  ## spark-log beside a real Kafka broker, its clients and Spark's connector for it
	$(WITH_JAVA) $(PYTHON) -m benchmarks kafka

bench-real-time: venv java  ## Spark's real-time mode through a gateway beside a real Kafka broker
	$(WITH_JAVA) $(PYTHON) -m benchmarks real-time

bench-gateway: venv java postgres  ## a gateway for Kafka clients beside a real Kafka broker
	$(WITH_JAVA) $(PYTHON) -m benchmarks gateway

# DuckLake's extensions for DuckDB, 60 MB, which nothing else needs.
proof: venv java postgres delta  ## the measurements of docs/proof.md beside Kafka, Spark's connector, Delta and DuckLake
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt duckdb-extension-ducklake duckdb-extension-postgres
	$(WITH_JAVA) $(PYTHON) -m benchmarks.proof

conformance: venv java  ## test suites of Kafka clients, and Kafka's tools, on a gateway; needs Go
	$(WITH_JAVA) $(PYTHON) -m scripts.conformance

check-kubernetes: venv postgres  ## lint, render and validate the chart, run its pods' commands; needs Go, the first time
	scripts/kubernetes_tools.sh
	scripts/with_test_folder.sh $(PYTHON) -m pytest tests/house/test_kubernetes.py tests/house/test_kubernetes_pods.py $(PYTEST_ARGS)

image:  ## the image, without Docker, tried on a read-only root; needs root
	scripts/image.sh

sbom: venv  ## the bill of materials of .venv, dist/spark-log.cdx.json
	$(PYTHON) scripts/sbom.py dist/spark-log.cdx.json

clean:  ## remove .venv and the caches
	rm -rf $(VENV) .venv41 .venv43 .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site *.egg-info
