"""A command as the test of a reduction: whether it still fails as it did."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spyrec.ir.core import Module
from spyrec.ir.errors import SpyrecError
from spyrec.ir.printer import print_module

PLACE = "{}"
SHOWN = 400  # characters of what a command printed


class Probe:
    """Runs ``command`` on a candidate's file. It shows what is looked for when it fails with the
    exit code it had for the first module and, if ``match`` is given, prints that."""

    def __init__(self, command: Sequence[str], match: str | None, timeout_s: float) -> None:
        self.command, self.match, self.timeout_s = tuple(command), match, timeout_s
        self.code = 0
        self._folder = tempfile.TemporaryDirectory(prefix="spyrec-reduce-")

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def expect(self, module: Module) -> None:
        """Note how the command fails. SpyrecError when it does not, or not as ``match`` says."""
        result = self._run(module)
        if result is None:
            raise SpyrecError(f"--test took longer than --timeout, {self.timeout_s:g} s")
        self.code, text = result
        if self.code == 0:
            raise SpyrecError("--test does not fail with the whole model: nothing to reduce")
        if self.match is not None and self.match not in text:
            raise SpyrecError(
                f"--test fails with exit code {self.code} but does not print {self.match!r}; it "
                f"printed: {text.strip()[-SHOWN:] or 'nothing'}"
            )

    def __call__(self, module: Module) -> bool:
        result = self._run(module)
        if result is None or result[0] != self.code:
            return False
        return self.match is None or self.match in result[1]

    def _run(self, module: Module) -> tuple[int, str] | None:
        """Exit code and output; None when it takes too long. SpyrecError when it cannot start."""
        path = Path(self._folder.name) / "candidate.sir"
        path.write_text(print_module(module), encoding="utf-8")
        words = [w.replace(PLACE, str(path)) for w in self.command]
        if words == list(self.command):
            words.append(str(path))
        try:
            command = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            raise SpyrecError(f"--test {words[0]}: {error.strerror or error}") from None
        with command:
            try:
                output, _ = command.communicate(timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if command.returncode is None:  # not over: it ends with all that it started
                    with suppress(ProcessLookupError):
                        os.killpg(command.pid, signal.SIGKILL)
        return command.returncode, output.decode("utf-8", "replace")
