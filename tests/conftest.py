"""One thread for numpy's matrix library in all tests: threads that wait for each other on a busy
machine make a run several times slower."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
