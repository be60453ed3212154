"""Measure wall and processor seconds by name."""

from __future__ import annotations

import time
from collections import defaultdict

import torch


class Clock:
    """A clock of wall and processor seconds by name; it waits for the GPU."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    def of(self, name: str) -> Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._begun = self._now()

    def __exit__(self, *error: object) -> None:
        wall, cpu = self._now()
        self.wall[self._name] += wall - self._begun[0]
        self.cpu[self._name] += cpu - self._begun[1]

    def _now(self) -> tuple[float, float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()
