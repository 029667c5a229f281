"""Points measured by the workers of a Dask cluster that is already there."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from spyrec.ir.errors import SpyrecError
from spyrec.sweep.local import Outcomes, Sources
from spyrec.sweep.point import Outcome, Task, compiler, lost, measure, with_text

PATIENCE_S = 30


def run_dask(tasks: Sequence[Task], sources: Sources, address: str) -> Outcomes:
    """The outcomes, as they come. Models are sent as text, so workers need spyrec but no files.

    SpyrecError when Dask is not installed, no scheduler answers, it has no workers, or they have
    another spyrec than this one. What was not yet measured when the caller stops is cancelled.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise SpyrecError("--scheduler needs Dask: pip install 'spyrec[dask]'") from None
    try:
        client = Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SpyrecError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise SpyrecError(f"the Dask scheduler at {address} has no workers")
        futures: dict[Any, Task] = {}
        try:
            placed = {
                digest: client.scatter(with_text(source), hash=False)
                for digest, source in sources.items()
            }
            run = token_hex(4)  # keys are of the whole cluster
            for task in tasks:
                key, source = f"spyrec-sweep-{run}-{task.id}", placed[task.source]
                futures[client.submit(measure, task, source, key=key, pure=False)] = task
            for future in as_completed(list(futures), loop=client.loop):
                yield _outcome(future, futures[future], address)
                future.release()
        finally:
            client.cancel(list(futures))


def _outcome(future: Any, task: Task, address: str) -> Outcome:
    error = future.exception()
    if isinstance(error, ImportError | AttributeError):
        raise SpyrecError(f"a worker of {address} has no spyrec, or another one: {error}")
    if error is not None:  # the worker died, as a rule
        return lost(task, f"{type(error).__name__}: {' '.join(str(error).split())}")
    outcome: Outcome = future.result()
    if outcome.compiler != compiler():
        raise SpyrecError(
            f"a worker of {address} has another spyrec, or other versions of Python or numpy, than "
            "this process; results of both are not put into one file"
        )
    return outcome
