# `make help` lists the targets.  Everything runs in .venv, which `make setup` makes from constraints.txt.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
AIRFLOW := .venv-airflow
S3 := .venv-s3

.DEFAULT_GOAL := help
.PHONY: help setup java demo test test-delta test-s3 crash fuzz bench-append bench-recovery lint bench bench-quick bench-page bench-memory bench-scale bench-load conformance conformance-nightly e2e wheel bundle bundle-test airflow-test clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: java $(READY) ## make or update the virtual environment

java:
	@conf/check-java.sh

$(READY): pyproject.toml constraints.txt
	@python=$$(conf/find-python.sh) && { [ -x $(BIN)/python ] || "$$python" -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@

demo: setup ## compact what Kafka wrote, and look at the result
	@$(BIN)/python -m tests.demo

test: setup ## the test suite (ARGS: more arguments for pytest)
	@$(BIN)/python -m pytest -n 2 -m "not delta and not s3 and not fuzz" $(ARGS)

$(S3)/.ready: conf/s3-constraints.txt
	@python=$$(conf/find-python.sh) && { [ -x $(S3)/bin/python ] || "$$python" -m venv $(S3); }
	@$(S3)/bin/python -m pip install --quiet --disable-pip-version-check -c conf/s3-constraints.txt 'moto[server]'
	@touch $@

test-s3: setup $(S3)/.ready ## outputs and sources in buckets (brings moto's S3 server once, into .venv-s3)
	@$(BIN)/python -m pytest -n 0 -m s3 $(ARGS)

test-delta: setup ## the tests of Delta tables on Spark; brings Delta's JARs once
	@$(BIN)/python -m pytest -m delta $(ARGS)

lint: $(READY) ## style, types, import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## the race against Kafka's cleaner: half an hour, 14 GB of disk (brings Kafka's JARs once)
	@$(BIN)/python -m benchmarks.race --results benchmarks/results/race.json $(ARGS)

bench-quick: setup ## the main ratios of it on less data, in three minutes
	@$(BIN)/python -m benchmarks.race --quick $(ARGS)

bench-page: $(READY) ## put what `make bench` measured into docs/internals/performance.md
	@$(BIN)/python -m benchmarks.race --report

crash: setup ## every command cut off at every step, before our start, Kafka's loader and Delta; a live log killed 500 times
	@SEDIMENT_CRASHES=500 SEDIMENT_CRASH_MATRIX=whole SEDIMENT_CONFORMANCE=1 $(BIN)/python -m pytest -n 0 tests/faults \
		tests/conformance/test_crash_matrix.py tests/conformance/test_crashes.py \
		tests/conformance/test_expire_crashes.py $(ARGS)
	@SEDIMENT_CRASH_MATRIX=whole $(BIN)/python -m pytest -n 0 -m delta tests/jobs/test_snapshot_faults.py $(ARGS)

fuzz: setup ## 10 million changed batches through every decoder, every command on every spoiled directory, and a signal at many moments
	@$(BIN)/python -m pytest -n 0 -s -m fuzz tests/fuzz tests/jobs/test_untrusted_directories.py tests/jobs/test_untrusted_snapshots.py tests/jobs/spark/test_cancellation.py tests/jobs/test_history.py $(ARGS)

bench-append: setup ## appends to a live log beside Kafka's (brings Kafka's JARs once)
	@$(BIN)/python -m benchmarks.append $(ARGS)

bench-recovery: setup ## recovery after an unclean stop beside Kafka's loader, 4 GB (brings Kafka's JARs once)
	@$(BIN)/python -m benchmarks.recovery $(ARGS)

conformance: setup ## Kafka's own classes and Sediment on random logs, compared (brings Kafka's JARs once)
	@$(BIN)/python -m pytest -m conformance tests/conformance $(ARGS)

conformance-nightly: setup ## the same over 10,000 logs
	@SEDIMENT_CONFORMANCE_LOGS=10000 SEDIMENT_CONFORMANCE_LOADS=6000 SEDIMENT_CONFORMANCE_RETENTIONS=4000 $(BIN)/python -m pytest -m conformance tests/conformance $(ARGS)

e2e: setup ## a broker of Kafka's, real clients, and Sediment in between (brings both once)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[e2e]'
	@$(BIN)/python -m pytest -W ignore::DeprecationWarning -m e2e tests/e2e $(ARGS)

wheel: setup ## the wheel, in dist/
	@rm -f dist/*.whl
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

bundle: wheel ## Sediment and what it needs, for spark-submit --archives, in dist/ (PYTHON: what every host has)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bundle]'
	@conf/make-bundle.sh $$(conf/find-python.sh) $(BIN)/python dist/*.whl dist/sediment-environment.tar.gz

bundle-test: bundle ## the wheel in an empty environment, and the bundle on a standalone cluster
	@$(BIN)/python -m pytest -m bundle tests/bundle $(ARGS)

$(AIRFLOW)/.ready: conf/airflow-constraints.txt
	@python=$$(conf/find-python.sh) && { [ -x $(AIRFLOW)/bin/python ] || "$$python" -m venv $(AIRFLOW); }
	@$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check -c conf/airflow-constraints.txt \
		apache-airflow apache-airflow-providers-apache-spark
	@touch $@

airflow-test: setup $(AIRFLOW)/.ready ## the nightly DAG in a real Airflow (brings Airflow once, into .venv-airflow)
	@$(BIN)/python -m pytest -m airflow tests/dags $(ARGS)

bench-memory: setup ## peak memory of a worker over sizes and keys
	@$(BIN)/python -m benchmarks.memory

bench-scale: setup ## time and memory over sizes, keys and partitions, into docs/internals/scale.md: 20 minutes, 20 GB of disk
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@$(BIN)/python -m benchmarks.scale --docs $(ARGS)

bench-load: setup ## 5,000 partitions, 20 GB, 10^8 keys, into docs/internals/scale.md: 10 minutes, 25 GB of disk
	@$(BIN)/python -m benchmarks.load --docs $(ARGS)

clean: ## remove what tests and builds leave; the environment stays
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	@find . -name __pycache__ -not -path './$(VENV)/*' -not -path './$(AIRFLOW)/*' -not -path './$(S3)/*' -prune -exec rm -rf {} +
