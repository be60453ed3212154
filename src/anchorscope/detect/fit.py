"""Every detector fitted on each of several materials, in processes of their own.

A fit is thousands of small steps of a solver, between which Python does as much as the products:
threads wait for one another there. With two cores two processes take half the time of two
threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import joblib

from anchorscope.detect.auto import Auto
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.detect.methods import AUTO, auto_candidates, make_methods
from anchorscope.probes.crossfit import default_workers, each_layer
from anchorscope.progress import Progress


def fit_all(material: Material, names: Sequence[str]) -> dict[str, Method]:
    """Fresh detectors fitted on the material; `auto`, where it is asked for, chooses among them."""
    made = make_methods([name for name in names if name != AUTO])
    fitted = {name: one.fit(material) for name, one in made.items() if not one.lacks(material)}
    if AUTO in names:
        fitted[AUTO] = Auto.of(auto_candidates(fitted), material.z)
    return fitted


def fit_each(
    materials: Sequence[Material], names: Sequence[str], progress: Progress
) -> list[dict[str, Method]]:
    """`fit_all` on each of the materials, several at a time."""
    jobs = (joblib.delayed(_fit_apart)(material, names) for material in materials)
    workers = min(default_workers(), len(materials))
    found = []
    for fitted in joblib.Parallel(workers, return_as="generator")(jobs):
        found.append(fitted)
        progress.advance()
    return found


def fit_reasons(material: Material, names: Sequence[str]) -> dict[str, str]:
    """Why detectors cannot be used on the material, by name."""
    made = make_methods([name for name in names if name != AUTO])
    return {name: reason for name, one in made.items() if (reason := one.lacks(material))}


def _fit_apart(material: Material, names: Sequence[str]) -> dict[str, Method]:
    found: list[dict[str, Method]] = []
    # Inside `each_layer` nothing starts threads of its own: the other cores have their own work.
    each_layer(lambda _: found.append(fit_all(material, names)), 1, workers=1)
    return found[0]
