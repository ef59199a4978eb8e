"""Which of the four promises does a gateway keep: exact, continuous, faithful format, faithful meaning?

A fake engine with a real tokenizer and chat template stands behind a gateway, any gateway; clients of four APIs play
harnesses in front of it; a judge compares. The command: `tugline bench exactness`; the guide: docs/how-to/exactness.md.

    engine = FakeEngine(model_dir)
    async with fake_server(engine) as url, http_client() as http:   # the gateway's engine is at `url`
        report = await run_suite(engine, AnyGateway(http, "http://127.0.0.1:4000", engine.name), http, Plan())
    assert report.ok, report.as_json()
"""

from __future__ import annotations

from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.judge import Finding, Verdict
from tugline.testing.exactness.reach import http_client
from tugline.testing.exactness.subjects import AnyGateway, Subject, TuglineGateway
from tugline.testing.exactness.suite import Plan, Report, fake_server, run_suite

__all__ = [
    "AnyGateway", "FakeEngine", "Finding", "Plan", "Report", "Subject", "TuglineGateway", "Verdict", "fake_server",
    "http_client", "run_suite",
]  # fmt: skip
