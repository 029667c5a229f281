"""Programs with buckets from the model file to the outputs: one file, any length that fits, numbers
as of a program for that length."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pt2_files import Draft, symbol

import spyrec
from examples.make_models import VOCABULARY, reader
from spyrec import bucket_compile, buckets, cli
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.errors import ObjectError
from spyrec.sim.link import bucket_program
from spyrec.sim.objfile import dump, loads

onnxruntime = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def program() -> spyrec.Program:
    return spyrec.compile(reader(), buckets={"seq": [128, 64]})


def text(length: int) -> dict[str, Array]:
    """Ids, and a mask that hides some of them."""
    rng = np.random.default_rng(length)
    mask = (rng.random((1, length)) < 0.8).astype(np.int64)
    return {"ids": rng.integers(0, VOCABULARY, (1, length)), "mask": mask}


def cosine(a: Array, b: Array) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize(("length", "bucket"), [(1, 64), (37, 64), (64, 64), (65, 128), (128, 128)])
def test_outputs_are_those_of_the_true_length(
    program: spyrec.Program, length: int, bucket: int
) -> None:
    given = text(length)
    session = onnxruntime.InferenceSession(reader().SerializeToString())
    want = dict(zip(("hidden", "mean"), session.run(None, given), strict=True))
    result = spyrec.simulate(program, given, check=length == 37)
    assert result.facts.bucket is not None
    assert result.facts.bucket.padded == {"seq": bucket}
    for name, array in want.items():
        assert result.outputs[name].shape == array.shape
        assert cosine(result.outputs[name], array) >= 0.9999


def test_a_full_bucket_is_bit_for_bit_a_program_for_that_length(program: spyrec.Program) -> None:
    given = text(64)
    kept = [p for p in PIPELINE if p.name != "join-products"]  # whose weights fit all buckets
    alone = spyrec.simulate(spyrec.compile(reader(), bind={"seq": 64}, passes=kept), given)
    mine = spyrec.simulate(program, given)
    np.testing.assert_array_equal(mine.outputs["hidden"], alone.outputs["hidden"])
    assert mine.total_cycles <= 1.05 * alone.total_cycles


def test_weights_are_in_the_file_once(program: spyrec.Program) -> None:
    """All but the places, of which each bucket has a table as long as itself."""
    shared, apart = buckets.weight_bytes(program.code)
    alone = spyrec.compile(reader(), bind={"seq": 128}).code
    assert shared + 128 * 256 * 2 == sum(b.size for b in alone.buffers if b.kind == "const")
    assert apart == (64 + 128) * 256 * 2


def test_the_report_says_what_padding_cost(program: spyrec.Program) -> None:
    """16384 d^2 of the six products with weights a token, 2 * 256 of the scores a pair."""
    facts = spyrec.simulate(program, text(48), timing_only=True).report()["bucket"]
    macs = [n * (4 * 256 * 256 + 2 * 256 * 1024) + 2 * 256 * n * n for n in (48, 64)]
    assert facts == {
        "name": "seq=64", "true": {"seq": 48}, "padded": {"seq": 64}, "padding": 0.25,
        "macs": macs[0], "padded_macs": macs[1], "macs_waste": 1 - macs[0] / macs[1],
    }  # fmt: skip
    alone = spyrec.simulate(spyrec.compile(reader(), bind={"seq": 64}), timing_only=True)
    assert sum(k.macs * k.count for k in alone.kernels) == macs[1]
    assert alone.report()["bucket"] is None


def test_without_inputs_the_largest_bucket_runs_or_the_one_asked_for(
    program: spyrec.Program,
) -> None:
    assert spyrec.simulate(program, timing_only=True).report()["bucket"]["name"] == "seq=128"
    asked = spyrec.simulate(program, bucket={"seq": 64})
    assert asked.outputs["hidden"].shape == (1, 64, 256)


def test_shapes_that_fit_no_bucket(program: spyrec.Program) -> None:
    def refused(given: dict[str, Array] | None, **options: Any) -> str:
        with pytest.raises(spyrec.SpyrecError) as caught:
            spyrec.simulate(program, given, **options)
        return str(caught.value)

    assert refused(text(129)) == "inputs: seq=129 fits into no bucket of seq=64, seq=128"
    assert refused(text(65), bucket={"seq": 64}) == "inputs: seq=65 fits into no bucket of seq=64"
    assert refused(None, bucket={"seq": 65}) == (
        "no bucket has seq=65; there are seq=64, seq=128"
    )
    assert refused({**text(9), "mask": text(10)["mask"]}) == (
        "inputs: input 'mask' has seq=10, 'ids' has seq=9"
    )
    assert refused({"ids": text(9)["ids"].astype(np.int32), "mask": text(9)["mask"]}) == (
        "inputs: input 'ids': expected int64[1, 9], got int32[1, 9]"
    )
    assert refused(text(0)) == "\n".join(
        "inputs: input 'ids' has seq=0; the program takes 1 or more" for _ in range(1)
    )
    plain = spyrec.compile(reader(), bind={"seq": 64})
    with pytest.raises(spyrec.SpyrecError, match=r"^the program has no buckets; compile"):
        spyrec.simulate(plain, bucket={"seq": 64})


def test_several_dimensions_are_crossed() -> None:
    program = spyrec.compile(product("rows", "columns"), buckets={"rows": [8, 4], "columns": [16]})
    assert program.buckets == ({"rows": 4, "columns": 16}, {"rows": 8, "columns": 16})
    x = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    result = spyrec.simulate(program, {"x": x})
    assert result.report()["bucket"]["name"] == "rows=8,columns=16"
    np.testing.assert_allclose(result.outputs["y"], x.T @ x, rtol=0.02, atol=0.05)


def test_dimensions_of_equal_sizes_are_told_apart() -> None:
    """Softmax over columns, sum over rows: each needs the mask of its own dimension."""
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    nodes = [helper.make_node("Exp", ["x"], ["e"]),
             helper.make_node("Softmax", ["e"], ["s"], axis=1),
             helper.make_node("ReduceSum", ["s", "axes"], ["y"], keepdims=1)]  # fmt: skip
    source = model(nodes, ["r", "c"], [1, "c"], axes)
    program = spyrec.compile(source, buckets={"r": [4, 8], "c": [4, 8]})
    for rows, columns in ((3, 4), (4, 2), (2, 7), (7, 3), (1, 1)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        share = np.exp(np.exp(x))
        want = (share / share.sum(1, keepdims=True)).sum(0, keepdims=True)
        got = spyrec.simulate(program, {"x": x}).outputs["y"]
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("value", ["", "[]", "[[[8, 2]]]", '[[[8, "q", 0]], [[9]]]', "{", "[1"])
@pytest.mark.parametrize("key", ["extents", "made", "macs", "least"])
def test_forged_facts_of_a_bucket_are_errors(
    program: spyrec.Program, key: str, value: str
) -> None:
    """Whatever a file says of its buckets, a run ends well or with a sentence."""
    code = program.code
    forged = replace(
        code,
        buffers=tuple(replace(b, meta={**b.meta, key: value} if key in b.meta else b.meta)
                      for b in code.buffers),
        buckets=tuple(replace(b, meta={**b.meta, key: value} if key in b.meta else b.meta)
                      for b in code.buckets),
    )  # fmt: skip
    if (key, value) == ("macs", "[]"):
        return  # no matrix product at all
    with pytest.raises(ObjectError, match=f"does not say its {key} as a program with buckets must"):
        spyrec.simulate(replace(program, code=forged), text(50))


def test_a_bucket_of_other_dimensions_is_an_error(program: spyrec.Program) -> None:
    first, *rest = program.code.buckets
    forged = replace(program.code, buckets=(replace(first, sizes={"other": 64}), *rest))
    with pytest.raises(ObjectError, match="does not say its sizes as a program with buckets must"):
        spyrec.simulate(replace(program, code=forged), text(50))


def product(rows: str, columns: str) -> onnx.ModelProto:
    """y = x^T x"""
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
             helper.make_node("MatMul", ["t", "x"], ["y"])]  # fmt: skip
    return model(nodes, [rows, columns], [columns, columns])


def model(nodes: list[Any], before: list[Any], after: list[Any], *weights: Any) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
             for name, shape in (("x", before), ("y", after))]  # fmt: skip
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def column(op: str, *after: Any) -> onnx.ModelProto:
    """A weight for each row; which dimension stands in the lanes depends on the other."""
    weight = numpy_helper.from_array(np.linspace(1, 2, 64, dtype=np.float32)[:, None], "c")
    return model([helper.make_node(op, ["x", "c"], ["s"]), *after], [64, "n"], [64, "n"], weight)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_weight_wanted_in_two_layouts(pinned: bool) -> None:
    """The small bucket takes the large one's layout where that is as fast, else has its own."""
    last = helper.make_node("Softmax", ["s"], ["y"], axis=-1) if pinned else (
        helper.make_node("Exp", ["s"], ["y"]))
    source = column("Add" if pinned else "Mul", last)
    program = spyrec.compile(source, buckets={"n": [8, 64]})
    shared, apart = buckets.weight_bytes(program.code)
    assert (shared > 0, apart > 0) == (pinned, not pinned)
    alone = spyrec.compile(source, bind={"n": 8})
    cycles = [spyrec.simulate(p, timing_only=True, **options).total_cycles
              for p, options in ((program, {"bucket": {"n": 8}}), (alone, {}))]  # fmt: skip
    if not pinned:
        assert cycles[0] == cycles[1]


def cached(path: Path) -> Path:
    """Adds up rows in a buffer at places that the input names."""
    n = symbol("s0")
    d = Draft()
    cache = d.weight("cache", np.ones((1, 16, 64), np.float32), "buffer")
    x, places = d.input("x", "float32", 1, n, 64), d.input("at", "int64", n)
    written = d.call(
        "aten.index_copy_", "float32", (1, 16, 64), self=cache, dim=1, index=places, source=x
    )
    total = d.call("aten.sum.dim_IntList", "float32", (1, 64), self=written, dim=[1])
    return d.returns(total).save(path)


def test_state_is_one_buffer_of_all_buckets(tmp_path: Path) -> None:
    program = spyrec.compile(cached(tmp_path / "m.pt2"), buckets={"x:1": [4, 8]})
    kept = [b for b in program.code.buffers if "state" in b.meta]
    assert [b.name for b in kept] == ["cache"]
    session = spyrec.Session(program)
    want = np.ones((16, 64), np.float32)
    rng = np.random.default_rng(0)
    for length, bucket in ((3, 4), (8, 8), (5, 8), (2, 4)):
        x = rng.standard_normal((1, length, 64)).astype(np.float32)
        places = rng.permutation(16)[:length]
        result = session.run(program, {"x": x, "at": places})
        want[places] = x[0]
        assert result.report()["bucket"]["padded"] == {"x:1": bucket}
        np.testing.assert_allclose(session.state["cache"][0], want, rtol=0.01, atol=0.01)
        np.testing.assert_allclose(result.outputs["output"][0], want.sum(0), rtol=0.01, atol=0.1)


def test_what_no_bucket_can_be_made_of() -> None:
    def refused(source: Any, sizes: Any, **options: Any) -> str:
        with pytest.raises(spyrec.SpyrecError) as caught:
            spyrec.compile(source, buckets=sizes, **options)
        return str(caught.value)

    assert refused(reader(), {"seq": []}) == "buckets of seq: expected sizes of 1 or more, got []"
    assert refused(reader(), {"seq": [0]}) == (
        "buckets of seq: expected sizes of 1 or more, got [0]"
    )
    assert refused(reader(), {"seq": 8}) == "buckets of seq: expected a list of sizes, got 8"
    assert refused(reader(), {"seq": list(range(1, 40))}) == (
        "the buckets make 39 combinations, expected 1 to 32; name fewer sizes"
    )
    assert refused(reader(), {"seq": [8]}, bind={"seq": 8}) == (
        "seq: given a size by bind and several by buckets; leave one out"
    )
    assert refused(reader(), {"sec": [8]}).startswith(
        "--buckets sec=8: no input has a dimension called 'sec'; those left open are seq."
    )
    with pytest.raises(spyrec.SpyrecError, match=r"^the plan is for a program with buckets; give"):
        spyrec.compile(reader(), bind={"seq": 8}, plan={"buckets": {}})
    assert "shapes that broadcast" in refused(reader(), {"seq": [1024]})  # it has 512 places


def test_a_model_that_padding_would_change_is_refused_by_op_and_node() -> None:
    axes = numpy_helper.from_array(np.array([0], np.int64), "starts")
    nodes = [helper.make_node("Exp", ["x"], ["e"]),
             helper.make_node("Concat", ["e", "x"], ["y"], name="join", axis=0)]  # fmt: skip
    with pytest.raises(spyrec.SpyrecError) as caught:
        spyrec.compile(model(nodes, ["n", 8], ["m", 8], axes), buckets={"n": [4, 8]})
    assert str(caught.value) == (
        "buckets: concat %y: it puts something behind a tensor whose end is padding (from join)"
    )


def run_cli(*words: str) -> int:
    return cli.run(list(words))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, spx = str(tmp_path / "m.onnx"), str(tmp_path / "m.spx")
    onnx.save(reader(), source)
    assert run_cli("compile", source, "-o", spx, "--buckets", "seq=64,128") == 0
    said = capsys.readouterr().out
    assert said == (
        f"{spx}: 46 kernels, 2 launches; buckets seq=64 seq=128: weights 2.0 MiB shared, "
        "96.0 KiB apart\n"
    )
    np.savez(tmp_path / "in.npz", **text(50))
    report = tmp_path / "r.json"
    assert run_cli("simulate", spx, "--inputs", str(tmp_path / "in.npz"), "--outputs",
                   str(tmp_path / "out.npz"), "--report", str(report)) == 0  # fmt: skip
    assert "bucket: seq=64 for seq=50: 21.9% padding, 22.6% of the MACs\n" in (
        capsys.readouterr().err
    )
    with np.load(tmp_path / "out.npz") as out:
        assert out["hidden"].shape == (1, 50, 256)
    assert json.loads(report.read_text())["bucket"]["true"] == {"seq": 50}
    assert run_cli("simulate", spx, "--timing-only", "--bucket", "seq=64") == 0
    assert "bucket: seq=64 for seq=64: 0.0% padding" in capsys.readouterr().err
    assert run_cli("simulate", spx, "--timing-only", "--bucket", "seq=65") == 1
    assert run_cli("simulate", spx, "--timing-only", "--bucket", "seq=x") == 2
    assert run_cli("compile", source, "--buckets", "seq=64,x") == 2
    assert run_cli("compile", source, "--buckets", "seq=64", "--emit", "ir") == 2


def test_listing_and_object_file_hold_the_buckets(
    program: spyrec.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spx, again = tmp_path / "m.spx", tmp_path / "again.spx"
    program.save(spx)
    assert dump(loads(spx.read_bytes())) == spx.read_bytes()
    assert run_cli("disasm", str(spx)) == 0
    (tmp_path / "m.lst").write_text(capsys.readouterr().out)
    assert run_cli("asm", str(tmp_path / "m.lst"), "-o", str(again)) == 0
    assert again.read_bytes() == spx.read_bytes()
    if shutil.which("readelf"):
        seen = subprocess.run(["readelf", "-aW", spx], capture_output=True, text=True, check=True)
        assert seen.stderr == ""
        assert " seq=128/ids\n" in seen.stdout


def test_each_bucket_says_what_alone_says(program: spyrec.Program) -> None:
    one = bucket_program(program.code, 0)
    assert [p.name for p in buckets.ports(program.code, "input", 0)] == ["ids", "mask"]
    assert dump(loads(dump(one))) == dump(one)


def test_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    onnx.save(product("r", "c"), tmp_path / "m.onnx")
    script = (
        "import spyrec, hashlib; from spyrec.sim.objfile import dump;"
        "p = spyrec.compile('m.onnx', buckets={'r': [4, 8], 'c': [8, 16]});"
        "print(hashlib.sha256(dump(p.code)).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(digests) == 1 and len(digests.pop().strip()) == len(hashlib.sha256().hexdigest())


def test_plan_of_each_bucket_leaves_nothing_open(program: spyrec.Program) -> None:
    again = spyrec.compile(reader(), buckets={"seq": [64, 128]}, plan=program.plan)
    assert dump(again.code) == dump(program.code)
    assert list(program.plan["buckets"]) == ["seq=64", "seq=128"]


def test_probes_reach_the_ends_and_the_middle() -> None:
    assert list(bucket_compile._probes({"n": 64}, {"n": 1})) == [
        {"n": 1}, {"n": 2}, {"n": 32}, {"n": 63}, {"n": 1}
    ]
