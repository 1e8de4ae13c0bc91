# `make demo` and `make test` need nothing but Debian, Python 3.11+ and a compiler: they set themselves up.
.PHONY: setup demo test test-all lint native-test fuzz bench clean

setup:
	@scripts/setup.sh

demo: setup
	@scripts/demo.sh

test: setup
	@scripts/test.sh

test-all: setup
	@scripts/test.sh --all

lint: setup
	@scripts/lint.sh

native-test:
	@scripts/native-tests.sh

fuzz:
	@scripts/fuzz.sh

bench: setup
	@.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --editable '.[bench]' --no-build-isolation
	@benchmarks/run_all.sh

clean:
	rm -rf .venv build data dist
