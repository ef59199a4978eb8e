"""A pytest plugin: one JSON line per test to the file that TUGLINE_OUTCOMES names. Property tests become repeatable."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

settings.register_profile("mutants", database=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutants")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, f"{report.when} {report.outcome}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report: pytest.CollectReport = yield
    if report.failed:
        _write(collector.nodeid, "collect failed")
    return report


def _write(test: str, outcome: str) -> None:
    with open(os.environ["TUGLINE_OUTCOMES"], "a") as file:
        file.write(json.dumps([test, outcome]) + "\n")
