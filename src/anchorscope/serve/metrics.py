"""Counts for Prometheus: requests, flagged answers, how many wait, and seconds."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from anchorscope.detect.deployed.located import Scored

PATHS = ("/v1/chat/completions", "/v1/models", "/healthz", "/readyz", "/metrics")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """A registry of its own: two servers in one process do not mix."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        own = self._registry = CollectorRegistry()
        say = {"namespace": "anchorscope", "registry": own}
        self._requests = Counter("requests", "Requests.", ("path", "status"), **say)
        self._answers = Counter("answers", "Answers that were scored.", **say)
        self._flagged = Counter("flagged", "Answers flagged as wrong.", **say)
        self._seconds = Histogram(
            "request_seconds", "Seconds of a chat request, to its last byte.",
            buckets=_SECONDS, **say,
        )  # fmt: skip
        self._sizes = Histogram("batch_size", "Questions in one call.", buckets=_SIZES, **say)
        Gauge("queue_length", "Requests that wait.", **say).set_function(waiting)

    def answered(self, scored: Scored) -> None:
        """Notes an answer."""
        self._answers.inc()
        self._flagged.inc(int(scored.flagged))

    def called(self, size: int) -> None:
        """Notes a call of the model with this many questions."""
        self._sizes.observe(size)

    def finished(self, path: str, status: int, seconds: float) -> None:
        """Notes a request; a path that does not exist is `other`, or scanners would fill memory."""
        self._requests.labels(path if path in PATHS else "other", str(status)).inc()
        if path == PATHS[0] and status == 200:
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self._registry)
