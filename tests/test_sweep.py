"""Sweeps that are run: the same file however it came about, stopped and gone on with, and points
without figures."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
from sessions import ENVIRONMENT, HAS_PROC, listening, session, until

import spyrec
from examples.make_models import cnn
from spyrec import cli, processes
from spyrec.ir.errors import SpyrecError
from spyrec.progress import silent
from spyrec.sim.device import load_device
from spyrec.sweep import local
from spyrec.sweep.cluster import _outcome
from spyrec.sweep.journal import HEAD, Journal
from spyrec.sweep.point import (
    FIGURES,
    Outcome,
    Own,
    Source,
    Task,
    _module,
    compiler,
    measure,
    with_text,
)
from spyrec.sweep.run import prepare
from spyrec.workbench.plugins import PassFile

Capture = pytest.CaptureFixture[str]
GRID = ["cnn.onnx", "cores=4,16", "ring.bytes_per_cycle=64,128", "-o"]
LONG = ["cnn.onnx", "cores=2,3,4,5,6,7,8,9", "ring.bytes_per_cycle=64,128", "-o"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(cnn(), "cnn.onnx")
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of the long sweep when nothing stops it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        onnx.save(cnn(), "cnn.onnx")
        assert cli.run(["sweep", *LONG, "o.csv", "-j", "1"]) == 0
        return Path("o.csv").read_bytes()


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_holds_what_compile_and_simulate_say(desk: Path, capsys: Capture) -> None:
    assert cli.run(["sweep", *GRID, "o.csv", "-j", "1"]) == 0
    assert capsys.readouterr() == ("o.csv: 4 points\n", "")
    assert sorted(p.name for p in desk.iterdir()) == ["cnn.onnx", "o.csv"]
    rows = table("o.csv")
    assert [(r["cores.count"], r["ring.bytes_per_cycle"]) for r in rows] == [
        ("4", "64"), ("4", "128"), ("16", "64"), ("16", "128")
    ]  # fmt: skip
    text = load_device().text.replace("\ncount = 32 ", "\ncount = 16 ")
    text = text.replace("\nbytes_per_cycle = 128 ", "\nbytes_per_cycle = 64 ")
    Path("my.toml").write_text(text, "utf-8")
    result = spyrec.simulate(spyrec.compile("cnn.onnx", device="my.toml"), timing_only=True)
    [row] = [r for r in rows if (r["cores.count"], r["ring.bytes_per_cycle"]) == ("16", "64")]
    assert row["total_cycles"] == str(result.total_cycles)
    assert float(row["total_us"]) == result.total_us
    assert row["hbm_read_bytes"] == str(sum(k.hbm_read_bytes * k.count for k in result.kernels))
    shares = sum(float(row[name]) for name in FIGURES if name.endswith("_share"))
    assert shares == pytest.approx(1.0, abs=1e-9)  # no kernels overlap in it
    assert len({r["id"] for r in rows}) == 4
    assert len({r["total_cycles"] for r in rows}) == 4


def test_one_process_and_two_write_the_same_file(desk: Path) -> None:
    assert cli.run(["sweep", *GRID, "one.csv", "-j", "1"]) == 0
    assert cli.run(["sweep", *GRID, "two.csv", "-j", "2"]) == 0
    assert Path("one.csv").read_bytes() == Path("two.csv").read_bytes()


@pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is an extra; see dependencies.md")
def test_parquet_holds_the_same_rows(desk: Path) -> None:
    import pyarrow.parquet as pq

    args = ["cnn.onnx", "pt.macs_per_cycle=256,1024", "plan-budget=0,0.05", "-j", "1", "-o"]
    assert cli.run(["sweep", *args, "o.csv"]) == 1
    assert cli.run(["sweep", *args, "o.parquet"]) == 1
    assert cli.run(["sweep", *args, "again.parquet"]) == 1
    assert Path("o.parquet").read_bytes() == Path("again.parquet").read_bytes()
    stored = pq.read_table("o.parquet")
    kinds = {field.name: str(field.type) for field in stored.schema}
    assert (kinds["total_cycles"], kinds["total_us"], kinds["plan-budget"], kinds["model"]) == (
        "int64", "double", "double", "string"
    )  # fmt: skip
    as_text = [
        {name: "" if v is None else str(v) for name, v in row.items()} for row in stored.to_pylist()
    ]
    expected = table("o.csv")
    for row in expected:
        row["plan-budget"] = str(float(row["plan-budget"]))
    assert as_text == expected


def test_a_parquet_file_without_pyarrow_is_refused_first(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.run(["sweep", *GRID, "o.parquet", "-j", "1"]) == 1
    assert capsys.readouterr().err == (
        "spyrec: a .parquet file needs pyarrow: pip install 'spyrec[parquet]'\n"
    )


def test_points_without_figures_are_rows_too(desk: Path, capsys: Capture) -> None:
    args = ["cnn.onnx", "lx.bytes=65536,70000,2097152", "-o", "o.csv", "-j", "1"]
    assert cli.run(["sweep", *args]) == 1
    rows = table("o.csv")
    assert [bool(r["error"]) for r in rows] == [True, True, False]
    assert [r["total_cycles"] != "" for r in rows] == [False, False, True]
    assert rows[0]["error"] == (
        "device: lx.reserved_bytes is 65536 of 65536 bytes, which leaves no stick of 128 bytes"
    )
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"cnn.onnx lx.bytes=65536: {rows[0]['error']}"
    assert not Path("o.csv.partial.jsonl").exists()


def test_a_defect_costs_one_point_and_is_told(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    real = spyrec.simulate

    def broken(program: Any, **more: Any) -> Any:
        if program.device.cores.count == 4:
            raise ZeroDivisionError("oh")
        return real(program, **more)

    monkeypatch.setattr("spyrec.api.simulate", broken)
    assert cli.run(["sweep", "cnn.onnx", "cores=4,8", "-o", "o.csv", "-j", "1"]) == 70
    told = "defect of spyrec: ZeroDivisionError: oh"
    assert [r["error"] for r in table("o.csv")] == [told, ""]
    assert told in capsys.readouterr().err


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the points that this process measures from now on."""
    labels: list[str] = []

    def counting(task: Task, source: Source) -> Outcome:
        labels.append(task.label)
        return measure(task, source)

    monkeypatch.setattr(local, "measure", counting)
    return labels


def finished(path: str) -> int:
    """Whole lines of a journal after its head."""
    return Path(path).read_bytes().count(b"\n") - 1 if Path(path).exists() else 0


@pytest.mark.skipif(not HAS_PROC, reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_goes_on_where_it_was(
    desk: Path, whole: bytes, how: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Killed, or Ctrl-C to all its processes as from a terminal: no process and no half file stays,
    what was finished is not measured again, and the file is that of a sweep that was never stopped.
    """
    journal = "o.csv.partial.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-m", "spyrec", "sweep", *LONG, "o.csv", "-j", "2"], env=ENVIRONMENT,
        stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=listening,
    )  # fmt: skip
    until(lambda: finished(journal) >= 2)
    assert len(session(child.pid)) >= 3  # at work: the command and two that measure
    if how == signal.SIGKILL:
        child.kill()  # the parent alone
    else:
        os.killpg(child.pid, how)
    _, said = child.communicate(timeout=60)
    if how == signal.SIGINT:
        assert child.returncode == 130
        assert said.strip() == (  # and no traceback of any of them
            "spyrec: interrupted; files that were being written are left as they were"
        )
    until(lambda: session(child.pid) == [], 30)
    assert sorted(os.listdir()) == ["cnn.onnx", journal]
    n = finished(journal)
    assert 2 <= n < 16
    with open(journal, "ab") as file:
        file.write(b'{"id": "torn')  # as a power cut may leave it
    measured = counted(monkeypatch)
    assert cli.run(["sweep", *LONG, "o.csv", "-j", "1"]) == 0
    assert capsys.readouterr().out == f"o.csv: 16 points, {n} from {journal}\n"
    assert len(measured) == len(set(measured)) == 16 - n
    assert sorted(os.listdir()) == ["cnn.onnx", "o.csv"]
    assert Path("o.csv").read_bytes() == whole


def test_a_process_that_dies_costs_its_point_until_the_next_time(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep goes on with a new process; what was lost is not in the journal."""
    sweep = prepare(
        [{"model": "cnn.onnx", "cores.count": n} for n in (2, 3, 4, 5)], {}, silent
    )
    outcomes = []
    runner = local.run_local(sweep.tasks, sweep.sources, 2)
    started = processes._started
    born: list[Any] = []

    def starting(*args: Any) -> Any:
        born.append(started(*args))
        return born[-1]

    monkeypatch.setattr(processes, "_started", starting)
    outcomes.append(next(runner))
    running = [process for _, process in born]
    os.kill(running[0].pid, signal.SIGKILL)
    outcomes += list(runner)
    assert {o.id for o in outcomes} == {t.id for t in sweep.tasks}
    lost = [o for o in outcomes if not o.lasting]
    assert [o.error for o in lost] == ["the process that ran it ended with signal 9"]
    assert len(born) >= 2
    assert not any(process.is_alive() for _, process in born)


def test_a_journal_takes_in_only_what_this_compiler_measured(desk: Path) -> None:
    figures = {name: 1.0 if name.endswith(("share", "us", "sation")) else 1 for name in FIGURES}
    good = Outcome("a" * 16, figures, compiler="me")
    with Journal("o.csv", "me") as journal:
        journal.add(good)
        journal.add(Outcome("b" * 16, figures, compiler="another"))
        journal.add(Outcome("c" * 16, {}, "no room", compiler="me"))
        journal.add(Outcome("d" * 16, {}, compiler="me"))  # neither figures nor an error
        with pytest.raises(SpyrecError, match="another sweep is writing there"):
            Journal("o.csv", "me")
    path = Path("o.csv.partial.jsonl")
    with open(path, "ab") as file:
        file.write(b"[1]\n\xff\n" + json.dumps({"id": "e"}).encode())
    with Journal("o.csv", "me") as journal:
        assert set(journal.finished) == {"a" * 16, "c" * 16}
        assert journal.finished["a" * 16] == good
        assert path.read_bytes().endswith(b"\xff\n")
    with Journal("o.csv", None) as journal:
        assert journal.finished == {}


@pytest.mark.parametrize("torn", [b"", HEAD[:7]])
def test_a_journal_whose_head_is_torn_is_begun_anew(desk: Path, torn: bytes) -> None:
    path = Path("o.csv.partial.jsonl")
    path.write_bytes(torn)
    with Journal("o.csv", "me"):
        assert path.read_bytes() == HEAD
    assert not path.exists()  # nothing is in it


def test_another_file_in_the_journals_place_is_left_alone(desk: Path, capsys: Capture) -> None:
    Path("o.csv.partial.jsonl").write_text("mine\n", "utf-8")
    assert cli.run(["sweep", *GRID, "o.csv", "-j", "1"]) == 1
    assert capsys.readouterr().err == (
        "spyrec: o.csv.partial.jsonl is not of a sweep; move it away\n"
    )
    assert Path("o.csv.partial.jsonl").read_text("utf-8") == "mine\n"


def test_a_device_in_the_journals_place_is_not_read(desk: Path, capsys: Capture) -> None:
    Path("o.csv.partial.jsonl").symlink_to("/dev/zero")
    assert cli.run(["sweep", *GRID, "o.csv", "-j", "1"]) == 1
    assert capsys.readouterr().err == "spyrec: o.csv.partial.jsonl is no file; move it away\n"


def test_a_model_that_changes_under_way_is_an_error(desk: Path) -> None:
    sweep = prepare([{"model": "cnn.onnx"}], {}, silent)
    [source] = sweep.sources.values()
    model = cnn()
    model.graph.node[-1].name += "x"
    onnx.save(model, "cnn.onnx")
    with pytest.raises(SpyrecError, match="was changed while the sweep ran"):
        source.module()


def test_a_model_as_text_is_the_same_without_its_file(desk: Path) -> None:
    sweep = prepare([{"model": "cnn.onnx", "cores.count": 4}], {}, silent)
    [task], [source] = sweep.tasks, sweep.sources.values()
    sent = with_text(source)
    expected = measure(task, source)
    Path("cnn.onnx").unlink()
    _module.cache_clear()
    assert measure(task, sent) == expected
    assert expected.figures


@dataclass
class Done:
    """A future of Dask that has come to its end."""

    made: Outcome | None = None
    error: Exception | None = None

    def exception(self) -> Exception | None:
        return self.error

    def result(self) -> Outcome | None:
        return self.made


def test_workers_that_are_not_like_this_process_are_refused(desk: Path) -> None:
    [task] = prepare([{"model": "cnn.onnx"}], {}, silent).tasks
    other = Outcome(task.id, {}, "no room", compiler="another")
    with pytest.raises(SpyrecError, match="a worker of here has another spyrec, or other versions"):
        _outcome(Done(other), task, "here")
    with pytest.raises(SpyrecError, match="a worker of here has no spyrec"):
        _outcome(Done(error=ModuleNotFoundError("No module named 'spyrec'")), task, "here")
    same = Outcome(task.id, {}, "no room", compiler=compiler())
    assert _outcome(Done(same), task, "here") == same
    died = _outcome(Done(error=RuntimeError("worker\n died")), task, "here")
    assert (died.error, died.lasting) == ("RuntimeError: worker died", False)


def test_a_picture_has_a_line_for_each_combination(desk: Path) -> None:
    args = ["sweep", *GRID, "o.csv", "-j", "1", "--plot", "o.svg"]
    assert cli.run([*args, "--x", "cores", "--y", "total_cycles"]) == 0
    picture = Path("o.svg").read_text("utf-8")
    assert picture.count("<circle") == 4
    assert re.findall(r"<title>(.*)</title>", picture) == [
        "ring.bytes_per_cycle=64", "ring.bytes_per_cycle=128"
    ]  # fmt: skip
    assert ">cores.count<" in picture
    assert ">total_cycles<" in picture


@pytest.mark.skipif(not find_spec("distributed"), reason="Dask is an extra; see dependencies.md")
def test_a_dask_cluster_writes_the_same_file(desk: Path, capsys: Capture) -> None:
    from distributed import LocalCluster

    args = ["cnn.onnx", "cores=4,16", "pt.macs_per_cycle=256,1024", "-o"]
    assert cli.run(["sweep", *args, "one.csv", "-j", "1"]) == 1
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        address = cluster.scheduler_address
        assert cli.run(["sweep", *args, "dask.csv", "--scheduler", address]) == 1
    assert Path("one.csv").read_bytes() == Path("dask.csv").read_bytes()
    assert not Path("dask.csv.partial.jsonl").exists()


def test_dask_that_is_not_there_is_told(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.run(["sweep", *GRID, "o.csv", "--scheduler", "tcp://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err == (
        "spyrec: --scheduler needs Dask: pip install 'spyrec[dask]'\n"
    )
    assert sorted(os.listdir()) == ["cnn.onnx"]


def test_this_process_knows_who_it_is() -> None:
    assert compiler() is not None, "a file of spyrec was written while the tests ran"


OWN = """from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import rewrite


@dataclass(frozen=True)
class Sub:
    name: ClassVar[str] = "own-sub"
    summary: ClassVar[str] = "Puts one op in the place of another."
    to: str = "neg"

    def run(self, module, target):
        def rule(op, b):
            return b.op(self.to, op.operands).results if op.name == "relu" else None

        return rewrite(module, rule)
"""


def ids(path: str) -> list[str]:
    return [row["id"] for row in table(path)]


def test_passes_of_a_file_run_in_every_process(desk: Path, capsys: Capture) -> None:
    """Their source is part of what a point is: an edit makes it another one."""
    Path("own.py").write_text(OWN, "utf-8")
    base = ["sweep", "cnn.onnx", "cores=4,8", "plan-budget=0"]
    own = [*base, "--load", "own.py", "--before", "cse", "own-sub{to=exp}"]
    assert cli.run([*base, "-o", "plain.csv", "-j", "1"]) == 0
    assert cli.run([*own, "-o", "one.csv", "-j", "1"]) == 0
    assert cli.run([*own, "-o", "two.csv", "-j", "2"]) == 0
    assert Path("one.csv").read_bytes() == Path("two.csv").read_bytes()
    cycles = [[row["total_cycles"] for row in table(name)] for name in ("plain.csv", "one.csv")]
    assert all(a != b for a, b in zip(*cycles, strict=True))
    text = ["sweep", "cnn.onnx", "cores=4,8", "plan-budget=0", "--load", "own.py", "--passes"]
    assert cli.run([*text, "own-sub,usual", "-o", "text.csv", "-j", "1"]) == 0
    Path("own.py").write_text(OWN + "# another\n", "utf-8")
    assert cli.run([*own, "-o", "edited.csv", "-j", "1"]) == 0
    assert not set(ids("edited.csv")) & set(ids("one.csv"))
    assert [r["total_cycles"] for r in table("edited.csv")] == cycles[1]
    assert cli.run([*base, "--load", "own.py", "-o", "unused.csv", "-j", "1"]) == 0
    assert Path("unused.csv").read_bytes() == Path("plain.csv").read_bytes()
    capsys.readouterr()
    for more, code, told in (
        (["--after", "cse", "own-sup"], 1, "no pass is called 'own-sup'; did you mean own-sub?"),
        (["--after", "csee", "own-sub"], 1, "is called csee; did you mean cse?"),
        (["--passes", "own-sub{too=1}"], 2, "has no option too; did you mean to? known: to"),
    ):
        args = ["sweep", "cnn.onnx", "--load", "own.py", *more, "-o", "o.csv", "-j", "1"]
        assert cli.run(args) == code
        assert told in capsys.readouterr().err


def test_points_last_when_all_of_a_pass_is_in_its_file(desk: Path, capsys: Capture) -> None:
    def lasting(text: str) -> bool:
        file = PassFile("own.py", text.encode())
        own = Own((file,), (("cse", "own-sub"),))
        [task] = prepare([{"model": "cnn.onnx"}], {}, silent, own).tasks
        assert task.files == (file,) and "own-sub" in task.passes
        return task.lasting

    assert lasting(OWN)
    assert lasting("import json, numpy as np\n" + OWN)
    Path("helper.py").write_text("x = 1", "utf-8")
    sys.path.insert(0, str(desk))
    try:
        assert not lasting("import helper\n" + OWN)
        assert not lasting(OWN + "    def more(self):\n        from helper import x\n")
        Path("own.py").write_text("import helper\n" + OWN, "utf-8")
        own = ["--load", "own.py", "--before", "cse", "own-sub", "-o", "own.csv", "-j", "1"]
        assert cli.run(["sweep", "cnn.onnx", "cores=4,8", "plan-budget=0", *own]) == 0
        assert "2 points with passes of which nobody can tell" in capsys.readouterr().err
        Path("own.py").write_text(OWN, "utf-8")
        assert cli.run(["sweep", "cnn.onnx", "cores=4,8", "plan-budget=0", *own]) == 0
        assert "nobody can tell" not in capsys.readouterr().err
    finally:
        sys.path.remove(str(desk))
