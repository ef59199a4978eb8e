"""Counters of the data plane, in a registry of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tugline.core.contracts import EngineLoad, Observed
from tugline.core.errors import EngineError
from tugline.core.turn import CallOutcome

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


GAUGES = {
    "running": ("tugline_engine_requests_running", "Requests that the engine samples now."),
    "waiting": ("tugline_engine_requests_waiting", "Requests that the engine has taken and not begun."),
    "cache_usage": ("tugline_engine_cache_usage_ratio", "Share of the engine's KV cache in use."),
}
COUNTERS = {
    "prefix_queries": ("tugline_engine_prefix_queries", "Prompt tokens looked up in the engine's prefix cache."),
    "prefix_hits": ("tugline_engine_prefix_hits", "Prompt tokens found in the engine's prefix cache."),
    "prompt_tokens": ("tugline_engine_prompt_tokens", "Prompt tokens the engine has taken, from anybody."),
    "sampled_tokens": ("tugline_engine_sampled_tokens", "Tokens the engine has sampled, for anybody."),
    "preemptions": ("tugline_engine_preemptions", "Requests put back because the KV cache was full."),
}
"""Fields of EngineLoad: (name, what). The engine's own counts: they begin anew when it starts anew."""


@dataclass(slots=True, eq=False)
class Loads(Collector):
    """What engines said last, by name. An engine that does not answer has no figures, not old ones."""

    known: dict[str, EngineLoad] = field(default_factory=dict)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See prometheus_client."""
        for kind, names in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for what, (name, text) in names.items():
                family = kind(name, text, labels=["engine"])
                for engine, load in list(self.known.items()):
                    value = getattr(load, what)
                    if value is not None:
                        family.add_metric([engine], value)
                yield family


@dataclass(slots=True, eq=False)
class Readings(Collector):
    """What engines count of themselves, by name, as it is when it is asked for."""

    engines: dict[str, Observed] = field(default_factory=dict)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See prometheus_client."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for engine, observed in self.engines.items():
            for reading in observed.readings():
                kind = GaugeMetricFamily if reading.kind == "gauge" else CounterMetricFamily
                names = ["engine", reading.label[0]] if reading.label else ["engine"]
                name = f"tugline_engine_{reading.name}"
                family = families.setdefault(name, kind(name, reading.help, labels=names))
                family.add_metric([engine, *((reading.label[1],) if reading.label else ())], reading.value)
        yield from families.values()


class Metrics:
    """One per gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("tugline_calls", "Calls by outcome.", ["dialect", "outcome"], registry=self.registry)
        self.drift = Counter("tugline_drift", "Drift reasons.", ["reason"], registry=self.registry)
        self.revoked = Counter(
            "tugline_calls_revoked",
            "Calls counted under this outcome whose client had not read the reply: they are undelivered.",
            ["dialect", "outcome"],
            registry=self.registry,
        )
        self.live = Counter(
            "tugline_live",
            "Live streams: live_shown, live_unsupported, live_mismatch.",
            ["what"],
            registry=self.registry,
        )
        self.faults = Counter(
            "tugline_engine_faults",
            "What engines did wrong, by name: attempts that failed, and replies whose tokens never train.",
            ["fault"],
            registry=self.registry,
        )
        self.tokens = Counter("tugline_tokens", "Tokens handled.", ["kind"], registry=self.registry)
        self.stage = Histogram(
            "tugline_call_stage_seconds", "Time per stage.", ["stage"], buckets=_SECONDS, registry=self.registry
        )
        self.running = Gauge("tugline_calls_running", "Calls in flight.", registry=self.registry)
        self.sessions = Gauge("tugline_sessions_open", "Open sessions.", registry=self.registry)
        self.loop_lag = Histogram(
            "tugline_loop_lag_seconds", "Event-loop lag, sampled.", buckets=_SECONDS, registry=self.registry
        )
        self.loads = Loads()
        self.registry.register(self.loads)
        self.readings = Readings()
        self.registry.register(self.readings)

    def call(self, dialect: str, outcome: CallOutcome) -> None:
        """A call has ended."""
        self.calls.labels(dialect, outcome.value).inc()

    def fault(self, err: EngineError) -> None:
        """An attempt has failed."""
        self.faults.labels(err.fault).inc()

    def text(self) -> bytes:
        """Prometheus exposition."""
        return generate_latest(self.registry)
