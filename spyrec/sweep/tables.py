"""The result of a sweep as a file: a row a point, equal bytes for equal rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spyrec import files
from spyrec.ir.errors import SpyrecError
from spyrec.sweep.settings import Value

Row = Mapping[str, Value | None]
CSV, PARQUET = ".csv", ".parquet"


def check_result(path: str) -> None:
    """SpyrecError when such a file cannot be written, before anything is measured for it."""
    suffix = Path(path).suffix.lower()
    if suffix not in (CSV, PARQUET):
        raise SpyrecError(f"{path}: the name of the result must end in {CSV} or {PARQUET}")
    if not Path(path).parent.is_dir():
        raise SpyrecError(f"{path}: there is no folder {Path(path).parent}")
    if suffix == PARQUET:
        _pyarrow()


def write_rows(path: str, rows: Sequence[Row]) -> None:
    """All rows, whole or not at all; they have the same names in the same order. Raises OSError."""
    suffix = Path(path).suffix.lower()
    files.write_bytes(path, _parquet(rows) if suffix == PARQUET else _csv(rows))


def _csv(rows: Sequence[Row]) -> bytes:
    """Nothing where there is None; floats with all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    """Columns of int64 where all are whole numbers, of double where all are numbers, else of text.
    """
    pa, pq = _pyarrow()
    columns: dict[str, list[Value | None]] = {}
    types = []
    for name in rows[0]:
        cells = [row[name] for row in rows]
        kinds = {type(cell) for cell in cells} - {type(None)}
        kind = pa.int64() if kinds == {int} else pa.float64()
        if kinds - {int, float} or not kinds:
            kind = pa.string()
            cells = [None if cell is None else str(cell) for cell in cells]
        columns[name] = cells
        types.append((name, kind))
    out = io.BytesIO()
    pq.write_table(pa.table(columns, schema=pa.schema(types)), out)
    return out.getvalue()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SpyrecError("a .parquet file needs pyarrow: pip install 'spyrec[parquet]'") from None
    return pyarrow, pyarrow.parquet
