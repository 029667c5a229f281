"""What a hostile tester found: forged programs, damaged files, impossible machines, signals, and
models whose data movement once had no code."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_machine import SMALL, kernel, lx, op, program
from small_models import Graph, Outcome, module, run_program

from spyrec import files, runtime
from spyrec.driver import compile_module
from spyrec.ir.core import Module, Value
from spyrec.ir.errors import SpyrecError
from spyrec.passes.manager import Numerics, Target
from spyrec.sim import objfile
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.errors import DeviceError, ObjectError, SimulationError
from spyrec.sim.isa import Instr, Loop, Program
from spyrec.sim.run import run

ROOT = Path(__file__).resolve().parent.parent
SPYRE = load_device().text

# Forged programs: well formed and signed -------------------------------------------------------


def forged(*stream: Instr | Loop) -> Program:
    """A program of one vector stream on two cores, as read back from its bytes."""
    written = program(kernel(2, (), sfp=stream))
    return objfile.loads(objfile.dump(written))


FOLD = op("vec", (4, 2), (lx(0, 0, 1), lx(8, 2, 1)), imm={"reduce": 1, "axes": 1, "lanes": 1})


@pytest.mark.parametrize("timing_only", [True, False])
@pytest.mark.parametrize(
    ("imm", "said"),
    [
        ({"lane_dim": 255}, "lane_dim is 255; -1 for none or one of its 2 dimensions"),
        ({"lane_dim": 2}, "lane_dim is 2; "),
        ({"lane_dim": -2}, "lane_dim is -2; "),
        ({"axes": 4}, "axes is 4, a bit set of the dimensions to fold; it has 2"),
        ({"axes": -1}, "axes is -1, "),
        ({"reduce": 5}, "reduce is 5; 0 to 4 exist"),
    ],
)
def test_a_reduction_over_no_dimension(
    imm: dict[str, int], said: str, timing_only: bool
) -> None:
    """lane_dim 255 was an IndexError."""
    bad = replace(FOLD, imm={**FOLD.imm, "lane_valid": 3, **imm})
    with pytest.raises(SimulationError, match=re.escape(said)):
        run(forged(bad), SMALL, {"x": bytes(16384)}, timing_only=timing_only)


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (op("vec", (1 << 27,), (lx(0, 0), lx(8, 0))), "its counts make 134217728 steps"),
        (op("fill", (60000, 60000), (lx(0, 0, 0),)), "its counts make 3600000000 steps"),
        (Loop(1000, (Loop(1000, (Loop(2, (op("sync"),)),)),)), "2000000 executions"),
        (Loop(1000, (Loop(400, (op("fill", (200000,), (lx(0, 0),)),)),)), "160000000000 steps"),
    ],
)
def test_more_work_than_any_program_has(stream: Instr | Loop, said: str) -> None:
    """A flipped bit of a count kept the simulator busy for minutes, or asked for all memory."""
    began = time.monotonic()
    with pytest.raises(SimulationError, match=said):
        run(forged(stream), SMALL, {"x": bytes(16384)})
    assert time.monotonic() - began < 5


# Buffers that do not say what the host must know -----------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", "6t"), ("shape", "-3"), ("shape", "3x"), ("shape", "9" * 5000), ("shape", "4"),
        ("layout", "?"), ("dtype", "f31"), ("device_dtype", "i8"), ("device_dtype", "dl17"),
    ],
)
def test_a_buffer_with_broken_facts(key: str, value: str) -> None:
    """A shape of "6t" was a ValueError."""
    code = compiled(module(lambda g, x: [g("exp", x)], ("x", (3,), "f32")))
    code = objfile.loads(objfile.dump(replace(code, buffers=tuple(
        replace(b, meta={**b.meta, key: value}) if b.kind == "input" else b for b in code.buffers
    ))))  # fmt: skip
    with pytest.raises((SpyrecError, ObjectError, Exception)) as caught:
        runtime.ports(code, "input")
    assert type(caught.value).__module__ in ("spyrec.ir.errors", "spyrec.sim.errors")


# Damaged archives ------------------------------------------------------------------------------


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    """Damage is a SpyrecError with the file's name; headers gave IndexError, offsets OSError."""
    stored = io.BytesIO()
    np.savez(stored, ids=np.ones((1, 8), np.int64), mask=np.ones((2, 4), np.float32))
    path, rng = tmp_path / "damaged.npz", random.Random(1)
    for _ in range(600):
        data = bytearray(stored.getvalue())
        for _ in range(rng.choice([1, 1, 3])):
            near_end = len(data) - 1 - rng.randrange(200)
            data[rng.choice([rng.randrange(len(data)), near_end])] = rng.randrange(256)
        path.write_bytes(data)
        try:
            files.read_npz(path)
        except SpyrecError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("header", ["{'descr': [], 'fortran_order': False, 'shape': (1,), }",
                                    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
                                    "(" * 300, "{'a': " * 500])  # fmt: skip
def test_headers_that_are_no_headers(tmp_path: Path, header: str) -> None:
    text = header.encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(SpyrecError, match=r"a\.npz"):
        files.read_npz(tmp_path / "a.npz")


# Machines that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=" + "[" * 100000, "its brackets nest too deep"),
        ("a=" + "9" * 10000, "a is not valid TOML: Exceeds the limit"),
        (SPYRE.replace("count = 32", "count = 64"),
         "cores.count is 64, expected a whole number from 1 to 63 (cores)"),
        (re.sub(r"\nexp = \d+", f"\nexp = {10 ** 19}", SPYRE),
         "sfp.cycles.exp is 10000000000000000000, "),
        (SPYRE.replace("reserved_bytes = 65536", "reserved_bytes = 2097152"), "leaves no stick"),
    ],
)  # fmt: skip
def test_a_device_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(DeviceError, match=re.escape(said)):
        parse_device(text)


def test_no_parameter_is_without_bound() -> None:
    """Each was once taken at 2**63 - 1 and overflowed somewhere in a run."""
    names = re.findall(r"(?m)^(\w+) = \d+", SPYRE)
    assert len(names) > 40
    for number in range(len(names)):
        seen = iter(range(len(names)))
        text = re.sub(
            r"(?m)^(\w+) = \d+",
            lambda m: f"{m[1]} = {2**63 - 1}" if next(seen) == number else m[0],  # noqa: B023
            SPYRE,
        )
        with pytest.raises(DeviceError, match=f"{names[number]} is 9223372036854775807, expected"):
            parse_device(text)


def test_a_device_that_counts_too_few_trips_is_named_when_compiling() -> None:
    """A program with more trips than its device counts was written, and refused when it ran."""
    device = parse_device(re.sub(r"(?m)^loop_max = \d+", "loop_max = 1", SPYRE))
    m = module(lambda g, x: [g("matmul", x, g.weight(2048, 64))], ("x", (8, 2048), "f32"))
    pins = {"tile": {"k": 64}, "parts": {"k": 16}}
    said = (
        "codegen: a loop of k0_matmul has 2 trips, the device counts 1 at most "
        r"\(from unknown\); pin larger tiles or split the tensor in the model"
    )
    with pytest.raises(SpyrecError, match=said):
        compile_module(m, Target(device), plan={"kernels": {"k0_matmul": pins}})


def test_sixty_three_cores() -> None:
    m = module(
        lambda g, x: [g("cumsum", x, axis=0, exclusive=True, reverse=False)], ("x", (200, 2), "f32")
    )
    close(on(m, 63, "dl16"), 0.1)


# Signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_being_ended_leaves_nothing_half_written(tmp_path: Path, how: signal.Signals) -> None:
    """Both once left the temporary file of a write behind."""
    script = (
        "import os, signal\n"
        "from spyrec import cli, files\n"
        "def slow(argv):\n"
        "    with files.atomic_file('old.spx') as file:\n"
        "        file.write(b'new')\n"
        f"        os.kill(os.getpid(), {int(how)})\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli.cli.main = lambda args, **more: slow(args)\n"
        "cli.main([])\n"
    )
    (tmp_path / "old.spx").write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "interrupted; files that were being written are left as they were" in done.stderr
    assert os.listdir(tmp_path) == ["old.spx"]
    assert (tmp_path / "old.spx").read_bytes() == b"old"


# Data movement that once had no code -----------------------------------------------------------


def compiled(m: Module, cores: int = 32, numerics: Numerics = "fp32") -> Program:
    device = parse_device(SPYRE.replace("count = 32", f"count = {cores}"))
    return compile_module(m, Target(device, numerics)).program


def on(m: Module, cores: int, numerics: Numerics = "fp32") -> Outcome:
    return run_program(m, compiled(m, cores, numerics))


def close(got: Outcome, error: float) -> None:
    assert got.error <= error
    assert got.worst >= 0.99995


def pad_wrap(g: Graph, x: Value) -> list[Value]:
    return [g("pad", x, lo=(1, 1, 0, 1), hi=(3, 1, 2, 0), mode="wrap", value=0.0)]


def tile_pad(g: Graph, x: Value) -> list[Value]:
    tiled = g("tile", x, repeats=(2, 3, 1))
    return [g("pad", tiled, lo=(2, 1, 0), hi=(3, 3, 2), mode="edge", value=0.0)]


def concat_cumsum(g: Graph, x: Value, y: Value) -> list[Value]:
    joined = g("concat", y, y, x, x, axis=0)
    return [g("cumsum", joined, axis=0, exclusive=False, reverse=False)]


def depth_to_space(g: Graph, x: Value) -> list[Value]:
    wide = g("depth_to_space", x, block=2, mode="CRD")
    return [g("conv_transpose", wide, g.weight(1, 33, 3, 3), strides=(1, 3), pads=(1, 1, 0, 1),
              dilations=(2, 2), output_padding=(0, 0), group=1)]  # fmt: skip


def concat_narrow(g: Graph, x: Value, y: Value) -> list[Value]:
    joined = g("concat", x, y, y, axis=1)
    return [g("matmul", g("transpose", joined, perm=(1, 0)), g.weight(31, 33))]


CUTS: list[tuple[Callable[..., list[Value]], list[tuple[int, ...]]]] = [
    (pad_wrap, [(4, 8, 2, 2)]), (tile_pad, [(2, 3, 33)]), (concat_cumsum, [(5,), (2,)]),
    (depth_to_space, [(1, 4, 6, 6)]), (concat_narrow, [(31, 1), (31, 17)]),
]


@pytest.mark.parametrize("cores", [1, 5, 7, 32])
@pytest.mark.parametrize(("make", "shapes"), CUTS, ids=lambda c: getattr(c, "__name__", ""))
def test_cuts_that_fall_inside_runs(
    make: Callable[..., list[Value]], shapes: list[tuple[int, ...]], cores: int
) -> None:
    """Cuts of a result that fall inside runs of a piece, whose start no grain knew of."""
    m = module(make, *((f"x{i}", shape, "f32") for i, shape in enumerate(shapes)))
    close(on(m, cores), 1e-6)


EVERY = tuple(range(7))


def permuted_and_summed(g: Graph, x: Value) -> list[Value]:
    """Loops of one step that end early on some cores fill the dimensions of a store."""
    turned = g("transpose", x, perm=(1, 3, 6, 0, 2, 4, 5))
    return [g("sub", turned, g("reduce_sum", turned, axes=(1, 4, 5), keepdims=True))]


WIDE: list[tuple[str, Callable[..., list[Value]], list[tuple[int, ...]]]] = [
    ("transpose", lambda g, x: [g("transpose", x, perm=(2, 0, 3, 4, 1, 5))], [(2, 2, 2, 97, 2, 8)]),
    ("reverse", lambda g, x: [g("transpose", x, perm=(2, 5, 3, 1, 4, 0))], [(3, 7, 4, 2, 7, 2)]),
    ("concat", lambda g, x, y: [g("concat", y, x, axis=4)],
     [(13, 2, 3, 4, 1, 4), (13, 2, 3, 4, 2, 4)]),
    ("add", lambda g, x, y: [g("add", x, y)],
     [(3, 2, 3, 2, 2, 2, 130), (3, 1, 3, 2, 1, 2, 130)]),
    ("max6", lambda g, x: [g("reduce_max", x, axes=EVERY[:6], keepdims=False)],
     [(4, 4, 7, 3, 2, 13)]),
    ("sum7", lambda g, x: [g("reduce_sum", x, axes=EVERY, keepdims=True)],
     [(2, 2, 3, 3, 2, 2, 13)]),
    ("sum3", lambda g, x: [g("reduce_sum", x, axes=(1, 3), keepdims=True)],
     [(2, 7, 3, 3, 5, 130)]),
    ("tails", lambda g, x: [g("sub", x, g("reduce_sum", x, axes=(1, 4, 5), keepdims=True))],
     [(4, 2, 2, 65, 1, 3, 2)]),
    ("melt", lambda g, x: permuted_and_summed(g, x), [(65, 4, 1, 2, 3, 2, 2)]),
    ("spread", lambda g, x: [g("sub", x, g("reduce_max", x, axes=EVERY[:6], keepdims=True))],
     [(4, 4, 7, 3, 2, 13)]),
]  # fmt: skip


@pytest.mark.parametrize("cores", [1, 2, 3, 32])
@pytest.mark.parametrize(("make", "shapes"), [w[1:] for w in WIDE], ids=[w[0] for w in WIDE])
def test_more_dimensions_than_an_instruction_has(
    make: Callable[..., list[Value]], shapes: list[tuple[int, ...]], cores: int
) -> None:
    """A group of wide elements is one dimension more; a full reduction has one more of its own."""
    m = module(make, *((f"x{i}", shape, "f32") for i, shape in enumerate(shapes)))
    close(on(m, cores), 1e-4)
    close(on(m, cores, "dl16"), 0.2)


@pytest.mark.parametrize(
    ("before", "after"),
    [((63, 97, 3), (18333,)), ((18333,), (63, 97, 3)), ((6111, 3), (97, 189)),
     ((31, 37, 41), (41, 1147))],
)  # fmt: skip
def test_reshapes_in_few_copies(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """The steps of one group are one copy, and groups that lie side by side need no cut."""
    m = module(lambda g, x: [g("reshape", x, shape=after)], ("x", before, "f32"))
    close(on(m, 1), 0)
    close(on(m, 32), 0)
