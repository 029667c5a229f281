"""The command line asks numpy's matrix library for one thread unless the user said otherwise."""

from __future__ import annotations

import os

import pytest

from spyrec import cli

CODE = 17


def seen_by_a_command(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> dict[str, str]:
    seen: dict[str, str] = {}

    def command(_argv: object) -> int:
        seen.update(os.environ)
        return CODE

    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(cli, "run", command)
    with pytest.raises(SystemExit) as left:
        cli.main([])
    assert left.value.code == CODE
    return seen


def test_one_thread_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_by_a_command(monkeypatch, {}) == dict.fromkeys(cli.THREADS, "1")


def test_the_users_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_by_a_command(monkeypatch, {"OPENBLAS_NUM_THREADS": "3"})
    assert seen["OPENBLAS_NUM_THREADS"] == "3"
