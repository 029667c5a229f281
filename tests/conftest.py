"""One thread for numpy's matrix library in all tests: threads that wait for each other on a busy
machine make a run several times slower. No cache of programs: each test compiles what it tests,
in processes it starts too, and nothing is written to the user's folder. And no search for better
plans, which takes most of a compilation's time: tests of the search ask for it."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["SPYREC_CACHE"] = "off"
os.environ["SPYREC_PLAN_BUDGET"] = "0"
