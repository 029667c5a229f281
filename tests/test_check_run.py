"""``simulate --check`` from the command line and from Python, and undefined lanes that reach an
output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_models import module, random_inputs, run_binary
from test_cli_simulate import SHAPE, STICKS, doubling

import spyrec
from spyrec import api, cli
from spyrec.driver import compile_module
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.errors import HazardError
from spyrec.sim.isa import Instr, Kernel, MicroProgram, Program, Stream

DEVICE = load_device()
LANES = 64


def with_streams(program: Program, **streams: Stream) -> Program:
    (kernel,) = program.kernels
    return replace(
        program, kernels=(replace(kernel, streams={**kernel.streams, **streams}),)
    )


def racing() -> Program:
    """The vector unit does not wait for the load."""
    program = doubling()
    (add,) = program.kernels[0].streams["sfp"]
    (load,) = program.kernels[0].streams["ml"]
    assert isinstance(add, Instr) and isinstance(load, Instr)
    return with_streams(
        program, sfp=(replace(add, waits=()),), ml=(replace(load, signals=()),)
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [(), ("--timing-only",)])
def test_findings_are_told_on_stderr_with_exit_code_1(
    options: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.Program(racing()).save("race.spx")
    assert cli.run(["simulate", "race.spx", "--check", *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("inputs: ")]
    assert len(lines) == 1 and lines[0].startswith("spyrec: race: ")
    assert "of add (from /double/Add)" in lines[0]


def test_nothing_found_is_a_run_like_any_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.Program(doubling()).save("double.spx")
    assert cli.run(["simulate", "double.spx", "--check"]) == 0
    checked = capsys.readouterr().out
    assert cli.run(["simulate", "double.spx"]) == 0
    assert capsys.readouterr().out == checked


def test_the_api_refuses_with_every_finding() -> None:
    with pytest.raises(HazardError) as caught:
        spyrec.simulate(api.Program(racing()), check=True)
    assert [text.partition(":")[0] for text in caught.value.findings] == ["race"]
    assert str(caught.value).splitlines() == list(caught.value.findings)


def folding_padding() -> Program:
    """y holds in the first lane of each stick of x the sum over all its lanes, padding too."""
    program = doubling()
    kernel = program.kernels[0]
    (add,) = kernel.streams["sfp"]
    assert isinstance(add, Instr)
    there, here, _ = add.operands
    fold = replace(
        add, operands=(there, here), imm={"program": 1, "reduce": 1, "lanes": 1},
    )  # fmt: skip
    made = with_streams(program, sfp=(fold,))
    (changed,) = made.kernels
    copied: Kernel = replace(changed, programs=(*changed.programs, MicroProgram(1)))
    return replace(made, kernels=(copied,))


def test_undefined_lanes_name_the_output_and_who_stored_it() -> None:
    """A fold over lanes leaves all but the first undefined, and of the second stick of a row the
    host has filled six lanes only."""
    assert SHAPE[1] % LANES == 6
    with pytest.raises(HazardError) as caught:
        spyrec.simulate(api.Program(folding_padding()), check=True)
    (text,) = caught.value.findings
    undefined = SHAPE[0] * SHAPE[1] - SHAPE[0]  # the first lane of each row's first stick is right
    assert text == (
        f"uninitialised: output y: {undefined} of 210 elements depend on lanes that nothing has "
        "written, the first is [0, 1], stored by launch 0, kernel double, core 0, unit ms, "
        f"`store {STICKS} hbm[y+0], lx[{STICKS}]` of add (from /double/Add)"
    )
    spyrec.simulate(api.Program(folding_padding()), timing_only=True, check=True)


def test_lanes_left_out_of_a_fold_do_no_harm() -> None:
    m = module(
        lambda g, x: [g("reduce_sum", g("exp", x), axes=(1,), keepdims=True)], ("x", SHAPE, "f32")
    )
    program = compile_module(m, Target(DEVICE)).program
    result = spyrec.simulate(api.Program(program), random_inputs(m), check=True)
    assert np.isfinite(result.outputs["o0"]).all()


def test_a_scalar_output_is_compared_too() -> None:
    m = module(
        lambda g, x: [g("reshape", g("reduce_sum", x, axes=(0, 1)), shape=())], ("x", SHAPE, "f32")
    )
    program = compile_module(m, Target(DEVICE)).program
    result = spyrec.simulate(api.Program(program), random_inputs(m), check=True)
    assert result.outputs["o0"].shape == ()


@pytest.mark.parametrize("group", [1, 8])
def test_what_only_padding_is_made_of_is_not_loaded(group: int) -> None:
    """Both taps along each dimension lie beside the one element there is: the bias alone is left.
    The load was one of what nothing reads."""
    m = module(
        lambda g, x: [g("conv", g("exp", x), g.weight(8, 8 // group, 2, 2), g.weight(8),
                        strides=(1, 1), pads=(1, 1, 1, 1), dilations=(2, 2), group=group)],
        ("x", (1, 8, 1, 1), "f32"),
    )  # fmt: skip
    outcome = run_binary(m)
    assert outcome.relative < 1e-3  # as the bias is rounded to the format of the card
    assert "x" not in {name for launch in outcome.program.launches for name, _ in launch.args}
