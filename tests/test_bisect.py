"""``spyrec bisect`` names the pass that breaks a model and shows the smallest that it breaks;
``spyrec reduce`` does the same for any command that fails."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from examples.make_models import cnn, encoder, reader
from spyrec import cli
from spyrec.ir.core import Module
from spyrec.ir.errors import SpyrecError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.verifier import verify
from spyrec.passes.pipeline import PIPELINE, PLANNING
from spyrec.workbench.bisect import Finding
from spyrec.workbench.part import part, weight
from spyrec.workbench.reduce import Reduction
from spyrec.workbench.shrink import smaller_sizes
from spyrec.workbench.states import CODE
from tests.graphs import modules

BROKEN = '''from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import rewrite


@dataclass(frozen=True)
class Broken:
    name: ClassVar[str] = "broken"
    summary: ClassVar[str] = "Does what its option says to every OP."
    op: str = "erf"
    how: str = "differs"

    def run(self, module, target):
        def rule(op, b):
            if op.name != self.op:
                return None
            if self.how == "fails":
                raise KeyError(op.name)
            if self.how == "malformed":
                b.add(op)
                b.add(op)
                return op.results
            return b.op("neg", [b.op(op.name, op.operands, **op.attrs).result]).results

        return rewrite(module, rule)
'''
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    onnx.save(encoder(), tmp_path / "encoder.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bisect(*more: str) -> int:
    return cli.run(["bisect", "encoder.onnx", "--load", "broken.py", *more])


def test_a_sound_pipeline_is_not_blamed(here: Path, capsys: Capture) -> None:
    assert cli.run(["bisect", "encoder.onnx"]) == 0
    out = capsys.readouterr().out
    assert out == f"{len(PIPELINE)} passes and none of them breaks encoder.onnx\n"


@pytest.mark.parametrize(
    ("before", "spec", "told"),
    [
        ("decompose", "broken", "pass 8 of 30, broken, changes results: the error of output"),
        ("fold", "broken{op=layer_norm}", "pass 3 of 30, broken, changes results"),
        ("find-attention", "broken{op=softmax,how=fails}",
         "broken, fails: PassError: pass broken: KeyError: 'softmax'"),
        ("cse", "broken{op=layer_norm,how=malformed}",
         "broken, leaves a malformed module: rule 2: %"),
    ],
)
def test_the_pass_is_named_and_the_model_reduced(
    here: Path, before: str, spec: str, told: str, capsys: Capture
) -> None:
    assert bisect("--before", before, spec, "-o", "small.sir") == 1
    out = capsys.readouterr().out
    assert told in out.splitlines()[0]
    small = parse_module(Path("small.sir").read_text("utf-8"))
    verify(small)
    op = spec.partition("op=")[2].rstrip("}").partition(",")[0] or "erf"
    assert [o.name for o in small.body.ops if o.name != "constant"] == [op]
    assert max(d for v in small.body.args for d in v.type.static_shape) <= 4
    assert cli.run(["opt", "small.sir", "--load", "broken.py", "--passes", spec,
                    "--oracle-each", "--verify-each"]) in (1, cli.DEFECT)


def test_a_late_pass_is_named_too(here: Path, capsys: Capture) -> None:
    """Where values have ten bits, errors of rounding are no finding and a broken pass is."""
    assert bisect("--before", "fuse", "broken{op=rsqrt}", "--no-reduce") == 1
    assert "pass 18 of 30, broken, changes results" in capsys.readouterr().out


def test_given_inputs_decide(here: Path, capsys: Capture) -> None:
    text = """module "m" {
  input %x: tensor<4x4xf32>
  %y = relu(%x) : tensor<4x4xf32>
  output "y" = %y
}"""
    Path("relu.sir").write_text(text, "utf-8")
    args = ["bisect", "relu.sir", "--load", "broken.py", "--inputs", "x.npz"]
    args += ["--before", "cse", "broken{op=relu}"]
    np.savez("x.npz", x=-np.ones((4, 4), np.float32))
    assert cli.run(args) == 0
    np.savez("x.npz", x=np.ones((4, 4), np.float32))
    assert cli.run(args) == 1
    capsys.readouterr()
    np.savez("x.npz", z=np.ones((4, 4), np.float32))
    assert cli.run(args) == 1
    assert "lacks the inputs x" in capsys.readouterr().err


def test_a_command_that_fails_is_reduced(here: Path, capsys: Capture) -> None:
    """Two ops are left of 42: what the command looks for is in neither alone."""
    script = "grep -q 'erf(' {} && grep -q 'softmax(' {} && echo seen && exit 3; exit 0"
    args = ["reduce", "encoder.onnx", "--test", shlex.join(["sh", "-c", script])]
    assert cli.run([*args, "--match", "seen"]) == 0
    assert "encoder.reduced.sir: 42 ops -> 2, " in capsys.readouterr().out
    first = Path("encoder.reduced.sir").read_bytes()
    small = parse_module(first.decode())
    verify(small)
    assert sorted(o.name for o in small.body.ops) == ["erf", "softmax"]
    assert cli.run([*args, "-o", "again.sir"]) == 0
    assert Path("again.sir").read_bytes() == first
    assert max(d for o in small.body.ops for d in o.result.type.static_shape) == 1


@pytest.mark.parametrize(
    ("command", "more", "told"),
    [
        ("true", [], "does not fail with the whole model"),
        ("false", ["--match", "x"], "exit code 1 but does not print 'x'"),
        ("no-such-command", [], "--test no-such-command: "),
        ("sh -c 'sleep 9'", ["--timeout", "0.2"], "took longer than --timeout, 0.2 s"),
        ("sh -c 'sleep 9 & sleep 9'", ["--timeout", "0.2"], "took longer than --timeout, 0.2 s"),
    ],
)
def test_a_test_that_cannot_be_used_is_told(
    here: Path, command: str, more: list[str], told: str, capsys: Capture
) -> None:
    start = time.monotonic()
    assert cli.run(["reduce", "encoder.onnx", "--test", command, *more]) == 1
    assert time.monotonic() - start < 8  # what the command started does not hold it up
    assert told in capsys.readouterr().err
    assert not list(here.glob("*.sir"))


def test_tries_are_counted(here: Path, capsys: Capture) -> None:
    assert cli.run(["reduce", "encoder.onnx", "--test", "false", "--tries", "5"]) == 0
    assert "5 candidates tried; stopped at --tries" in capsys.readouterr().out


@given(modules(max_ops=8, widths=(1, 3, 64)))
@settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_part_of_a_graph_is_a_module(module: Module) -> None:
    ops = [op for op in module.body.ops if op.name != "constant"]
    for cut in range(len(ops)):
        for kept in (ops[:cut], ops[cut:], ops[cut : cut + 1], ops[::2]):
            if kept:
                small = part(module, kept)
                verify(small)
                assert weight(small) == len(kept)
                assert print_module(parse_module(print_module(small))) == print_module(small)
    for smaller in smaller_sizes(module):
        verify(smaller)


def test_reduction_keeps_what_shows_it() -> None:
    module = parse_module("""module "m" {
  input %x: tensor<24x64xf32>
  %r = reshape(%x) {shape = (2, 12, 64)} : tensor<2x12x64xf32>
  %e = exp(%r) : tensor<2x12x64xf32>
  %t = transpose(%e) {perm = (1, 0, 2)} : tensor<12x2x64xf32>
  %n = neg(%t) : tensor<12x2x64xf32>
  output "y" = %n
}""")

    def shows(m: Module) -> bool:
        made = {op.result: op for op in m.body.ops}
        v = m.body.results[0]
        while v in made and made[v].name != "exp":
            v = made[v].operands[0]
        return v in made and "neg" in [op.name for op in m.body.ops]

    small = Reduction(shows).run(module)
    assert print_module(small) == """module "m" {
  input %r: tensor<1x1x1xf32>
  %e = exp(%r) : tensor<1x1x1xf32>
  %n = neg(%e) : tensor<1x1x1xf32>
  output "y" = %n
}
"""
    with pytest.raises(SpyrecError, match="does not show"):
        Reduction(lambda m: False).run(module)


@pytest.mark.parametrize(
    ("text", "least", "sizes"),
    [
        ("softmax(%x) {axis = 1} : tensor<8x8x8xf32>", ("softmax", 0, 1, 2), [(1, 2, 1)]),
        ("matmul(%x, %x) : tensor<8x8x8xf32>", ("matmul", 0, 0, 3), [(3, 1, 1)]),
        ("matmul(%x, %w) : tensor<8x8x8xf32>", ("matmul", 0, 2, 2), [(1, 1, 2), (2, 1)]),
        ("slice(%x) {starts = (0, 0, 0), sizes = (8, 8, 8), steps = (1, 1, 1)} : tensor<8x8x8xf32>",
         ("slice", 0, 2, 4), [(1, 1, 4)]),
        ("reshape(%x) {shape = (8, 8, 8)} : tensor<8x8x8xf32>", ("reshape", 0, 1, 2), [(1, 2, 1)]),
    ],
)
def test_dimensions_of_one_size_shrink_apart(
    text: str, least: tuple[str, int, int, int], sizes: list[tuple[int, ...]]
) -> None:
    """Where one must stay the others still go, whatever size all had at first."""
    inputs = "input %x: tensor<8x8x8xf32>\n" + "input %w: tensor<8x8xf32>\n" * ("%w" in text)
    module = parse_module(f'module "m" {{\n{inputs}%y = {text}\noutput "y" = %y\n}}')
    name, operand, axis, size = least

    def shows(m: Module) -> bool:
        shapes = [op.operands[operand].type.static_shape for op in m.body.ops if op.name == name]
        return any(axis < len(s) and s[axis] >= size for s in shapes)

    small = Reduction(shows).run(module)
    assert [v.type.static_shape for v in small.body.args] == sizes


def test_a_late_stage_is_reduced_without_new_sizes(here: Path, capsys: Capture) -> None:
    onnx.save(cnn(), "cnn.onnx")
    assert cli.run(["opt", "cnn.onnx", "--passes", "usual", "--until", "tiling",
                    "-o", "late.sir"]) == 0
    command = "sh -c '! grep -q \"max_pool(\" {}'"
    assert cli.run(["reduce", "late.sir", "--test", command]) == 0
    small = parse_module(Path("late.reduced.sir").read_text("utf-8"))
    verify(small)
    assert weight(small) == 1


def test_a_step_that_gets_nowhere_ends(here: Path, capsys: Capture) -> None:
    """The two rows are made by the op, whatever size is asked for: the candidate with one is the
    module itself."""
    Path("rows.sir").write_text("""module "m" {
  input %x: tensor<1x64xf32>
  input %z: tensor<1x64xf32>
  %c = concat(%x, %z) {axis = 0} : tensor<2x64xf32>
  output "y" = %c
}""", "utf-8")
    args = ["bisect", "rows.sir", "--load", "broken.py", "--before", "cse", "broken{op=concat}"]
    assert cli.run([*args, "-o", "small.sir"]) == 1
    small = parse_module(Path("small.sir").read_text("utf-8"))
    assert [v.type.static_shape for v in small.body.args] == [(1, 1), (1, 1)]
    assert small.body.results[0].type.static_shape == (2, 1)


def test_an_error_less_than_later_formats_allow_is_found(here: Path, capsys: Capture) -> None:
    """16 bits may be off by 0.03, float32 may not: 2^-7 is wrong while values are float32."""
    Path("sum.sir").write_text("""module "m" {
  input %x: tensor<4x4xf32>
  %y = tanh(%x) : tensor<4x4xf32>
  output "y" = %y
}""", "utf-8")
    slight = BROKEN.replace('return b.op("neg", [b.op(op.name, op.operands, **op.attrs).result])', (
        "import numpy\n"
        "            c = b.constant(numpy.float32(1 + 2**-7), op.result.type.dtype)\n"
        "            return b.op('mul', [b.op(op.name, op.operands, **op.attrs).result, c])"
    ))
    Path("slight.py").write_text(slight, "utf-8")
    args = ["bisect", "sum.sir", "--load", "slight.py", "--no-reduce"]
    assert cli.run([*args, "--before", "cse", "broken{op=tanh}"]) == 1
    assert "pass 4 of 30, broken, changes results" in capsys.readouterr().out
    assert cli.run([*args, "--before", "dce", "broken{op=tanh}"]) == 0
    assert cli.run([*args, "--before", "dce", "broken{op=tanh}", "--tolerance", "0.005"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        "",
        '  input %x: tensor<4xf32>\n  output "y" = %x\n',
        "  input %x: tensor<4xf32>\n  %y = exp(%x) : tensor<4xf32>\n",
        "  %c = constant {value = dense<2xfloat32, [1.0, 2.0]>} : tensor<2xf32>\n"
        '  %y = exp(%c) : tensor<2xf32>\n  output "y" = %y\n',
        "  input %x: tensor<4x64xi32>\n  %y = abs(%x) : tensor<4x64xi32>\n"
        '  output "y" = %y\n',
    ],
    ids=["empty", "echo", "no-output", "no-input", "integers"],
)
def test_odd_modules_are_looked_at(here: Path, body: str, capsys: Capture) -> None:
    Path("odd.sir").write_text(f'module "m" {{\n{body}}}\n', "utf-8")
    assert cli.run(["bisect", "odd.sir"]) == 0
    assert "none of them breaks odd.sir" in capsys.readouterr().out


def test_integers_and_constants_are_reduced(here: Path, capsys: Capture) -> None:
    """No input is left where the pass breaks what is constant."""
    Path("c.sir").write_text("""module "m" {
  %c = constant {value = dense<4xint32, [1, -2, 3, 4]>} : tensor<4xi32>
  %a = abs(%c) : tensor<4xi32>
  %b = add(%a, %a) : tensor<4xi32>
  output "y" = %b
}""", "utf-8")
    args = ["--load", "broken.py", "--before", "canonicalize", "broken{op=abs}", "-o", "small.sir"]
    assert cli.run(["bisect", "c.sir", *args]) == 1
    small = parse_module(Path("small.sir").read_text("utf-8"))
    assert [o.name for o in small.body.ops] == ["constant", "abs"] and not small.body.args


STATEFUL = """module "m" {state = (("s", "t", dense<4x64xfloat32, splat 0.0>),)} {
  input %x: tensor<4x64xf32>
  input %s: tensor<4x64xf32>
  %e = exp(%x) : tensor<4x64xf32>
  %t = add(%s, %e) : tensor<4x64xf32>
  %y = tanh(%t) : tensor<4x64xf32>
  output "y" = %y
  output "t" = %t
}"""


def test_state_goes_with_its_input_and_output(here: Path, capsys: Capture) -> None:
    Path("state.sir").write_text(STATEFUL, "utf-8")
    assert cli.run(["bisect", "state.sir"]) == 0
    args = ["--load", "broken.py", "--before", "fuse", "broken{op=tanh}", "-o", "small.sir"]
    assert cli.run(["bisect", "state.sir", *args]) == 1
    small = parse_module(Path("small.sir").read_text("utf-8"))
    assert [o.name for o in small.body.ops] == ["tanh"] and "state" not in small.attrs

    keeps = Reduction(lambda m: "state" in m.attrs and bool(m.body.ops)).run(
        parse_module(STATEFUL)
    )
    ((name, new, first),) = keeps.attrs["state"]  # type: ignore[misc]
    assert keeps.output_names == ("t",) and (name, new) == ("s", "t")
    assert np.shape(first) == keeps.body.results[0].type.shape == (1, 1)


def test_regions_are_kept_whole(here: Path, capsys: Capture) -> None:
    Path("if.sir").write_text("""module "m" {
  input %c: tensor<bool>
  input %x: tensor<4x64xf32>
  %n = neg(%x) : tensor<4x64xf32>
  %y = if(%c) : tensor<4x64xf32> {
    ():
    %a = exp(%n) : tensor<4x64xf32>
    yield %a
  } {
    ():
    yield %x
  }
  %z = tanh(%y) : tensor<4x64xf32>
  output "z" = %z
}""", "utf-8")
    assert cli.run(["bisect", "if.sir"]) == 0
    args = ["--load", "broken.py", "--before", "decompose", "-o", "small.sir"]
    assert cli.run(["bisect", "if.sir", *args[:4], "broken{op=if,how=fails}", *args[4:]]) == 1
    small = parse_module(Path("small.sir").read_text("utf-8"))
    verify(small)
    assert [o.name for o in small.body.ops] == ["if"] and len(small.body.args) == 3


def test_open_sizes_are_bound(here: Path, capsys: Capture) -> None:
    onnx.save(reader(), "reader.onnx")
    args = ["bisect", "reader.onnx", "--load", "broken.py", "--before", "cse", "broken{op=erf}"]
    assert cli.run([*args, "--bind", "seq=8", "-o", "small.sir"]) == 1
    assert "pass 4 of 30, broken, changes results" in capsys.readouterr().out
    assert cli.run([*args, "-o", "other.sir"]) == 1
    assert "seq" in capsys.readouterr().err and not Path("other.sir").exists()


def test_a_module_that_is_lowered_needs_the_passes_that_are_left(
    here: Path, capsys: Capture
) -> None:
    onnx.save(cnn(), "cnn.onnx")
    assert cli.run(["opt", "cnn.onnx", "--passes", "usual", "--until", "tiling",
                    "-o", "late.sir"]) == 0
    assert cli.run(["bisect", "late.sir"]) == 1
    assert "is at the device stage; expected stage tensor" in capsys.readouterr().err
    assert cli.run(["bisect", "late.sir", "--passes", "lower-tiles,scratchpad,hbm"]) == 0


def test_nothing_is_written_after_ctrl_c(here: Path, capsys: Capture) -> None:
    text = BROKEN.replace("    def run(self, module, target):\n", (
        "    def run(self, module, target):\n"
        "        if (here := len(module.body.ops)) < 40:\n"
        "            raise KeyboardInterrupt(here)\n"
    ))
    Path("stops.py").write_text(text, "utf-8")
    args = ["bisect", "encoder.onnx", "--load", "stops.py", "--before", "cse", "broken"]
    assert cli.run([*args, "-o", "small.sir"]) == cli.INTERRUPTED
    told = capsys.readouterr()
    assert "interrupted" in told.err
    assert ", broken, changes results: " in told.out  # what was found is not lost
    assert not list(here.glob("*.sir"))


def test_what_lowering_carries_out_is_told() -> None:
    """Results do not show what planning decides, so its passes are named beside the guilty one."""
    module = parse_module(STATEFUL)
    for step, kind, told in (
        ("lower-tiles", "differs", ("fuse", "stick-layout", "core-allocation", "ring-relayout",
                                    "tiling")),
        ("lower-tiles", "malformed", ()),
        ("fuse", "differs", ()),
        (CODE, "differs", PLANNING),
    ):
        names = [p.name for p in PIPELINE]
        number = names.index(step) + 1 if step != CODE else len(names) + 1
        found = Finding(kind, step, number, "", module)  # type: ignore[arg-type]
        assert found.carries_out(PIPELINE) == told


def test_what_fails_in_a_trial_run_is_reduced(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The improve pass runs those after it, so it fails as long as they are there."""
    monkeypatch.setenv("SPYREC_PLAN_BUDGET", "1")
    kind = f"tensor<{'1x' * 40}f32>"
    text = f'module "m" {{\n  input %x: {kind}\n  %a = neg(%x) : {kind}\n  %y = exp(%a) : {kind}\n'
    Path("m.sir").write_text(f'{text}  output "y" = %y\n}}\n', "utf-8")
    assert cli.run(["bisect", "m.sir"]) == 1
    out = capsys.readouterr().out
    assert ", improve, fails: ObjectError: tensor %x: a tensor of 40 dimensions" in out
    assert len(parse_module(Path("m.bisect.sir").read_text("utf-8")).body.ops) < 2
