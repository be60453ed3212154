"""Every detector, fitted on one material or on each of several."""

from __future__ import annotations

from collections.abc import Sequence

from anchorscope.detect.auto import Auto
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.detect.methods import AUTO, auto_candidates, make_methods
from anchorscope.probes.each import each
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
    return each(
        lambda material: fit_all(material, names),
        materials,
        progress=lambda done, total: progress.advance(),
    )


def fit_reasons(material: Material, names: Sequence[str]) -> dict[str, str]:
    """Why detectors cannot be used on the material, by name."""
    made = make_methods([name for name in names if name != AUTO])
    return {name: reason for name, one in made.items() if (reason := one.lacks(material))}
