"""Compare installed releases of packages, for tests that need a later one."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version


def older(package: str, than: str) -> bool:
    """Whether the installed release comes before this one."""
    return Version(version(package)) < Version(than)
