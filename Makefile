# `make demo` and `make test` need nothing but Debian, Python 3.11+ and a compiler: they set themselves up.
.PHONY: setup demo test test-all lint docs native-test fuzz bench bench-peers bench-check clean

setup:
	@scripts/setup.sh test lint

demo:
	@scripts/setup.sh demo
	@scripts/demo.sh

test:
	@scripts/setup.sh test
	@scripts/test.sh

test-all:
	@scripts/setup.sh test frameworks
	@scripts/test.sh --all

lint:
	@scripts/setup.sh test lint docs
	@scripts/lint.sh

docs:
	@scripts/setup.sh docs
	@scripts/docs.sh
	@echo "build/site/index.html"

native-test:
	@scripts/native-tests.sh

fuzz:
	@scripts/fuzz.sh

bench:
	@scripts/setup.sh test bench
	@benchmarks/run_all.sh

# make bench-peers OPTIONS="--quick --only train"
bench-peers:
	@scripts/setup.sh test bench
	@scripts/bench-peers.sh $(OPTIONS)

# make bench-check OPTIONS="--only JPEG"
bench-check:
	@python3 -m benchmarks.counts.check $(OPTIONS)

.PHONY: wheel
wheel:
	@scripts/wheel.sh $(PYTHON)

.PHONY: test-wheel
test-wheel:
	@scripts/test_wheel.sh --python $(or $(PYTHON),python3)

clean:
	rm -rf .venv build data dist
