# `make help` lists the targets.  Everything runs in .venv, which `make setup` makes from constraints.txt.  The first
# install into an environment is pip itself, because older versions know no dependency groups.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Sediment and Spark without the tools of tests: enough to try it and to build it.
USABLE := $(VENV)/.usable
ENVIRONMENT := $(if $(wildcard $(READY)),$(READY),$(USABLE))
INSTALL := -m pip install --quiet --disable-pip-version-check
# Tests start many processes.  Without bytecode, each process would compile all of its modules.
PYTEST := PYTHONDONTWRITEBYTECODE= conf/in-memory.sh $(BIN)/python -m pytest
AIRFLOW := .venv-airflow
S3 := .venv-s3
DOCS := .venv-docs
VERSITYGW := .versitygw
VERSITYGW_VERSION := v1.8.0

.DEFAULT_GOAL := help
.PHONY: suite bench-race help setup java demo test test-delta test-s3 crash fuzz bench-append bench-recovery bench-records bench-driver bench-serve bench-verify lint bench bench-all bench-commands bench-quick bench-page bench-memory bench-scale bench-load bench-cluster bench-buckets bench-incremental bench-partitions conformance conformance-nightly client-suites schemas e2e wheel sdist bundle release bundle-test yarn image platforms versions airflow-test docs clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.* ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10
	@echo; echo "make suite NAME=…   a longer suite:"
	@sed -n '/^bench/!s/^\([a-z0-9-]*\):.* #: \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
	@echo; echo "make bench NAME=…   a benchmark (without NAME: race):"
	@sed -n 's/^bench-\([a-z0-9-]*\):.* #: \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

suite: ## run the longer suite NAME; `make help` lists them (ARGS: further arguments)
	@$(MAKE) --no-print-directory $(NAME)

setup: java $(READY) ## create or update the virtual environment

java:
	@conf/check-java.sh

$(READY): pyproject.toml constraints.txt
	@echo "installing Sediment, Spark and the test tools into $(VENV): once, 1.7 GB, a minute or more"
	@conf/install.sh $(VENV) -e . --group test --group lint
	@touch $@

$(USABLE): pyproject.toml constraints.txt
	@echo "installing Sediment and Spark into $(VENV): once, 1.1 GB, a minute or more"
	@conf/install.sh $(VENV) -e '.[spark]' --group build
	@touch $@

demo: java $(ENVIRONMENT) ## plan, compact and verify a log directory that Kafka wrote (ARGS: DIR, --prepare only writes the directory)
	@$(BIN)/sediment demo $(ARGS)

test: setup ## run the test suite (ARGS: further arguments for pytest)
	@$(PYTEST) -n 4 --dist worksteal -m "not delta and not s3 and not fuzz" $(ARGS)

$(S3)/.ready: conf/s3-constraints.txt
	@python=$$(conf/find-python.sh) && { [ -x $(S3)/bin/python ] || "$$python" -m venv $(S3); }
	@$(S3)/bin/python $(INSTALL) -c conf/s3-constraints.txt 'moto[server]'
	@touch $@

test-s3: setup $(S3)/.ready #: test outputs and sources in buckets (installs moto's S3 server into .venv-s3 once)
	@$(PYTEST) -n 0 -m s3 $(ARGS)

test-delta: setup #: test Delta tables on Spark (downloads Delta's JARs once)
	@$(PYTEST) -m delta $(ARGS)

lint: $(READY) ## check style, types and import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: ## run the benchmark NAME; `make help` lists them (ARGS: further arguments)
	@$(MAKE) --no-print-directory bench-$(or $(NAME),race)

bench-race: setup #: compare speed with Kafka's cleaner, erase with compact, and reencode with its codec: half an hour, 14 GB of disk (downloads Kafka's JARs once)
	@$(BIN)/python -m benchmarks.race --results benchmarks/results/race.json $(ARGS)
	@$(BIN)/python -m benchmarks.commands.erase
	@$(BIN)/python -m benchmarks.reencode
	@$(BIN)/python -m benchmarks.reencode --batch-records 5 --batch-bytes 65536

bench-quick: setup #: measure the main ratios of bench on less data, in three minutes
	@$(BIN)/python -m benchmarks.race --quick $(ARGS)

bench-page: $(READY) #: write the results of `make bench` into benchmarks/results/performance.md
	@$(BIN)/python -m benchmarks.race --report

bench-commands: setup #: compare plan, a cold compact, verify, snapshot, expire --archive, recover and Spark scans with their peers or limits, 10 GB of disk (downloads the JARs of Kafka and Delta once; ARGS: --quick, --only NAME)
	@$(BIN)/sediment setup delta-jars > /dev/null
	@$(BIN)/python -m benchmarks.commands --results benchmarks/results/commands.json $(ARGS)

bench-all: setup #: run every benchmark of benchmarks/results/performance.md and write its tables: 50 minutes, 16 GB of disk (downloads the JARs of Kafka and Delta once)
	@$(BIN)/sediment setup delta-jars > /dev/null
	@$(BIN)/python -m benchmarks.all $(ARGS)

crash: setup #: crash every command at every step, then start Sediment, Kafka's loader and Delta; kill a live log 500 times, a server 400 times, compact and clone 1,100 times; flood a server
	@SEDIMENT_CRASHES=500 SEDIMENT_SERVER_KILLS=200 SEDIMENT_COMMAND_KILLS=100 SEDIMENT_CRASH_MATRIX=whole SEDIMENT_CONFORMANCE=1 $(PYTEST) -n 0 tests/faults \
		tests/conformance/crashes/test_crash_matrix.py tests/conformance/crashes/test_crashes.py \
		tests/conformance/crashes/test_expire_crashes.py $(ARGS)
	@SEDIMENT_FLOOD=whole $(PYTEST) -n 0 -s tests/server/live/test_flood.py $(ARGS)
	@SEDIMENT_CRASH_MATRIX=whole $(PYTEST) -n 0 -m delta tests/jobs/snapshotting/test_snapshot_faults.py $(ARGS)

fuzz: setup #: feed 10 million mutated batches and messages to every decoder, run every command on every corrupted directory, send signals at many points
	@$(PYTEST) -n 0 -s -m fuzz tests/fuzz tests/jobs/test_untrusted_directories.py tests/jobs/snapshotting/test_untrusted_snapshots.py tests/jobs/process/test_cancellation.py tests/jobs/test_history.py $(ARGS)

bench-append: setup #: compare appends to a live log with Kafka's (downloads Kafka's JARs once)
	@$(BIN)/python -m benchmarks.append $(ARGS)

bench-recovery: setup #: compare recovery after an unclean stop with Kafka's loader, 4 GB (downloads Kafka's JARs once)
	@$(BIN)/python -m benchmarks.commands.recovery $(ARGS)

bench-records: setup #: compare building and reading record batches with Python clients, for docs/reference/records.md
	@$(BIN)/python -m benchmarks.records --docs $(ARGS)

bench-verify: setup #: compare verify with compact on the same data, warm and cold
	@$(BIN)/python -m benchmarks.commands --only verify $(ARGS)

bench-driver: setup #: compare a plan of 1,000 partitions and a cold compact of 45 MB with their limits
	@$(BIN)/python -m benchmarks.commands --only driver $(ARGS)

bench-serve: setup #: compare serve with a Kafka broker on the same files, 4 GB of disk (downloads Kafka's JARs once)
	@$(BIN)/python -m benchmarks.serve $(ARGS)

conformance: setup #: compare Sediment with Kafka's own classes on random logs (downloads Kafka's JARs once)
	@$(PYTEST) -m conformance tests/conformance $(ARGS)

schemas: setup ## write the message schemas and the descriptions of configs from the JARs of Kafka (downloads them once)
	@$(BIN)/python -m tests.conformance.formats.message_schemas
	@$(BIN)/python -m tests.conformance.formats.config_definitions

conformance-nightly: setup #: run conformance on 10,000 logs
	@SEDIMENT_CONFORMANCE_LOGS=10000 SEDIMENT_CONFORMANCE_LOADS=6000 SEDIMENT_CONFORMANCE_RETENTIONS=4000 SEDIMENT_CONFORMANCE_MESSAGES=200 SEDIMENT_CONFORMANCE_TRANSACTIONS=20000 $(PYTEST) -m conformance tests/conformance $(ARGS)

e2e: setup #: test Sediment with a Kafka broker and real clients (downloads both once)
	@$(BIN)/python $(INSTALL) -c constraints.txt --group e2e
	@$(BIN)/python -m pytest -W ignore::DeprecationWarning -m e2e tests/e2e $(ARGS)

versions: setup #: test Sediment on directories of brokers from 0.11 to 4.4, with ZooKeeper and KRaft (downloads their JARs once, 1 GB; ARGS: -k 2.8.2)
	@$(PYTEST) -n 0 -m versions tests/versions $(ARGS)

client-suites: setup #: run the test suites of Kafka clients against serve: franz-go, and librdkafka if ARGS has --librdkafka DIR
	@$(BIN)/python -m tests.e2e.client_suites $(ARGS)

# The time of every file in what is built, so that two builds of a version have the same bytes.
wheel sdist bundle release: export SOURCE_DATE_EPOCH = $(or $(shell git log -1 --format=%ct -- sediment/version.py 2>/dev/null),$(shell stat -c %Y sediment/version.py))

wheel: $(ENVIRONMENT) ## build the wheel in dist/
	@rm -f dist/*.whl
	@$(BIN)/python -m hatchling build -t wheel -d dist

sdist: $(ENVIRONMENT) ## build the source archive in dist/ (make test builds the wheel from this archive, too)
	@rm -f dist/kafka_sediment-*.tar.gz
	@$(BIN)/python -m hatchling build -t sdist -d dist

bundle: wheel ## pack Sediment and its dependencies for spark-submit --archives, in dist/ (PYTHON: the Python of every host)
	@$(BIN)/python $(INSTALL) -c constraints.txt --group bundle
	@conf/make-bundle.sh $$(conf/find-python.sh) $(BIN)/python dist/*.whl dist/sediment-environment

release: sdist bundle ## build all files of a release in dist/, with checksums and a list of contents and licences
	@cp constraints.txt dist/
	@cd dist && sha256sum *.tar.gz *.whl *.cdx.json constraints.txt > SHA256SUMS && cat SHA256SUMS

bundle-test: release #: test the release: build it again, install it as the pages say, and run the bundle on a standalone cluster
	@$(BIN)/python -m pytest -m bundle tests/bundle $(ARGS)

yarn: bundle #: test the bundle on a YARN of this machine, in both deploy modes (downloads Hadoop's JARs once)
	@$(BIN)/python -m pytest -m yarn tests/yarn $(ARGS)

platforms: wheel #: run Sediment on other Pythons, Javas, Sparks and packages, for half an hour (brings them once)
	@$(BIN)/python $(INSTALL) -c constraints.txt --group platforms
	@$(BIN)/python -m pytest -m platforms tests/platforms $(ARGS)

image: setup #: build the steps of the Dockerfile in a root of Debian, and run commands there: 6 GB of disk (needs root and mmdebstrap)
	@$(BIN)/python -m pytest -m image tests/image $(ARGS)

$(AIRFLOW)/.ready: conf/airflow-constraints.txt
	@python=$$(conf/find-python.sh) && { [ -x $(AIRFLOW)/bin/python ] || "$$python" -m venv $(AIRFLOW); }
	@$(AIRFLOW)/bin/python $(INSTALL) -c conf/airflow-constraints.txt \
		apache-airflow apache-airflow-providers-apache-spark
	@touch $@

$(AIRFLOW)/.provider: $(AIRFLOW)/.ready pyproject.toml
	@$(AIRFLOW)/bin/python $(INSTALL) --no-deps -e .
	@touch $@

airflow-test: setup $(AIRFLOW)/.provider #: test the nightly DAG in a real Airflow (installs Airflow into .venv-airflow once)
	@$(BIN)/python -m pytest -m airflow tests/dags $(ARGS)

$(DOCS)/.ready: pyproject.toml constraints.txt conf/docs-constraints.txt
	@python=$$(conf/find-python.sh) && { [ -x $(DOCS)/bin/python ] || "$$python" -m venv $(DOCS); }
	@$(DOCS)/bin/python $(INSTALL) -c constraints.txt pip
	@$(DOCS)/bin/python $(INSTALL) -c constraints.txt -c conf/docs-constraints.txt -e . --group docs
	@touch $@

docs: java $(DOCS)/.ready ## run the notebooks and build the documentation site in build/site (installs MkDocs into .venv-docs once)
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet --strict $(ARGS)

bench-memory: setup #: measure peak memory of a worker by size and number of keys
	@$(BIN)/python -m benchmarks.memory

bench-scale: setup #: measure time and memory by size, keys and partitions, for benchmarks/results/scale.md: 20 minutes, 20 GB of disk
	@$(BIN)/python $(INSTALL) -c constraints.txt --group bench
	@$(BIN)/python -m benchmarks.scale --docs $(ARGS)

bench-load: setup #: measure 5,000 partitions, 20 GB and 10^8 keys, for benchmarks/results/scale.md: 10 minutes, 25 GB of disk
	@$(BIN)/python -m benchmarks.load --docs $(ARGS)

bench-cluster: setup #: measure compact on standalone clusters of 1, 2 and 4 workers, for benchmarks/results/scale.md: 10 GB of disk
	@$(BIN)/python -m benchmarks.cluster --docs $(ARGS)

$(VERSITYGW)/versitygw:
	@GOBIN=$(CURDIR)/$(VERSITYGW) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)

bench-buckets: setup $(VERSITYGW)/versitygw #: compact one partition of 20 GB from bucket to bucket, for benchmarks/results/scale.md: 44 GB of disk (builds an S3 server with Go once)
	@$(BIN)/python -m benchmarks.buckets --docs $(ARGS)

bench-incremental: setup #: clone a directory of 20 GB twice, the second time with --since, for benchmarks/results/scale.md: 44 GB of disk
	@$(BIN)/python -m benchmarks.incremental --docs $(ARGS)

bench-partitions: setup #: list, plan, clone and compact up to 100,000 partitions, for benchmarks/results/scale.md: an hour, 4 GB and 1.2 million inodes
	@$(BIN)/python -m benchmarks.partitions --docs $(ARGS)

clean: ## remove the output of tests and builds, but not the environment
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	@find . -name __pycache__ -not -path './$(VENV)/*' -not -path './$(AIRFLOW)/*' -not -path './$(S3)/*' -not -path './$(DOCS)/*' -prune -exec rm -rf {} +
