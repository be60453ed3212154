"""Prometheus metrics: requests, waits, and the detector's outcomes, which show drift."""

from __future__ import annotations

import math
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from anchorscope.detect.scored import Outcome, Scored

PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/score", "/v1/models"),
    *("/healthz", "/readyz", "/metrics"),
)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_TENTHS = tuple(n / 10 for n in range(1, 11))


class Metrics:
    """Counters and histograms in a separate registry, so that servers of one process do not mix."""

    def __init__(self, detector: dict[str, Any]) -> None:
        own = self._registry = CollectorRegistry()
        common: Any = {"namespace": "anchorscope", "registry": own}
        self._requests = Counter("requests", "Requests.", ("path", "status"), **common)
        self._answers = Counter("answers", "Scored answers by outcome.", ("outcome",), **common)
        for outcome in get_args(Outcome):
            self._answers.labels(outcome)  # there from the first read on, as 0
        self._seconds = Histogram(
            "request_seconds", "Seconds of a POST request that was served, to its last byte.",
            buckets=_SECONDS, **common,
        )  # fmt: skip
        self.wait = Histogram("queue_seconds", "Seconds in the queue.", buckets=_SECONDS, **common)
        self.batch = Histogram("batch_size", "Answers in one call.", buckets=_SIZES, **common)
        self._probability = Histogram(
            "probability", "P(wrong) of scored answers.", buckets=_TENTHS, **common
        )
        self._distance = Histogram(
            "distance", "Share of training answers nearer than a scored one; near 1: unlike them.",
            buckets=(*_TENTHS[:-1], 0.95, 0.99, 1.0), **common,
        )  # fmt: skip
        self.waiting = Gauge("queue_length", "Requests that wait.", **common)
        names = ("detector", "method")
        Gauge("detector_info", "The detector that scores.", names, **common).labels(
            *(str(detector[name]) for name in names)
        ).set(1)

    def scored(self, answer: Scored) -> None:
        """Count an answer."""
        self._answers.labels(answer.outcome).inc()
        for histogram, value in (
            (self._probability, answer.probability),
            (self._distance, answer.distance),
        ):
            if math.isfinite(value):
                histogram.observe(value)

    def finished(self, facts: dict[str, Any]) -> None:
        """Count a request; unknown paths count as `other`, so that scanners cannot fill memory."""
        path = facts["path"] if facts["path"] in PATHS else "other"
        self._requests.labels(path, str(facts["status"])).inc()
        if path != "other" and facts["method"] == "POST" and facts["status"] == 200:
            self._seconds.observe(facts["seconds"])

    def text(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self._registry)
