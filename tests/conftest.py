"""One thread for numpy's matrix library in all tests: threads that wait for each other on a busy
machine make a run several times slower. And no cache of programs: each test compiles what it tests,
in processes it starts too, and nothing is written to the user's folder."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["SPYREC_CACHE"] = "off"
