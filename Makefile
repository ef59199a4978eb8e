# Uses ./.venv, made by the first target that needs it. `make check` before a commit, `make test` before a push.
PY ?= .venv/bin/python
BIN = $(dir $(PY))
export OMP_NUM_THREADS = 1

.PHONY: check test soak bench docs ci vllm

.venv/bin/python:
	python3 -m venv .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[dev,embedded]'

check: $(PY)
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)mypy
	$(BIN)lint-imports
	$(PY) -m pytest -q -m 'not real and not chaos and not soak' tests/unit

test: $(PY)
	$(PY) -m pytest -q -n 2 --dist loadgroup -m 'not soak'

soak: $(PY)
	TUGLINE_TEST_KILLS=40 $(PY) -m pytest -q tests/real/test_kill9.py tests/service/test_store_kill.py --timeout 3600
	$(PY) -m pytest -q -s -m soak tests/service/test_session_leaks.py --timeout 3600
	TUGLINE_TEST_DISCONNECTS=67 $(PY) -m pytest -q -s tests/service/test_disconnects.py --timeout 7200
	for api in chat anthropic responses gemini; do $(PY) -m tugline.testing.fuzz --dialect $$api --bodies 20000 || exit 1; done
	TUGLINE_TEST_SEEDS=10 $(PY) -m pytest -q tests/service/test_long.py --timeout 3600
	$(PY) -m pytest -q -n 2 tests/redteam
	TUGLINE_TEST_CYCLES=200 $(PY) -m pytest -q tests/contract/test_sandbox_kill.py --timeout 7200
	$(PY) -m tugline.testing.corpus fetch .cache/corpus
	TUGLINE_TEST_SEEDS=3 $(PY) -m pytest -q -m corpus --timeout 7200
	$(PY) -m tugline.testing.forgery .cache/corpus --strings 10000
	TUGLINE_TEST_MACHINE=2000 $(PY) -m pytest -q tests/property/test_harness_machine.py
	$(PY) tests/mutants/run.py --all
	$(PY) tests/real/clis.py .clis
	TUGLINE_TEST_CLIS=.clis $(PY) -m pytest -q -n 2 tests/real/test_clis_exact.py
	TUGLINE_TEST_STREAMING=live TUGLINE_TEST_CLIS=.clis $(PY) -m pytest -q -n 2 tests/real/test_clis_exact.py
	TUGLINE_TEST_CLIS=.clis TUGLINE_TEST_SILENCE=180 $(PY) -m pytest -q -s -n 9 tests/real/test_keepalive.py

bench: $(PY)
	$(BIN)tugline bench gateway

docs: $(PY)
	$(PY) -m pytest -q tests/unit/test_house.py

ci:
	.ci/run

vllm: $(PY)
	TUGLINE_TEST_VLLM=1 $(PY) -m pytest -q -s tests/real/test_vllm.py
	TUGLINE_TEST_VLLM=1 TUGLINE_TEST_VLLM_DTYPE=bfloat16 $(PY) -m pytest -q -s tests/real/test_vllm.py -k 'ten_turns or rescoring or switch'
	TUGLINE_TEST_VLLM=1 $(PY) tests/real/weights.py .cache/weights
	TUGLINE_TEST_VLLM=1 TUGLINE_TEST_WEIGHTS=.cache/weights $(PY) -m pytest -q -s tests/real/test_small_model.py
