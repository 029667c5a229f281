"""Which versions of other distributions are installed, without importing them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def versions(distributions: Iterable[str]) -> str:
    """``torch 2.9.0, transformers 5.0.0``; what is not installed has none as its number."""
    return ", ".join(f"{name} {_version(name)}" for name in distributions)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
