"""Files called .pt2 that are damaged, forged or none: each gives sentences, never a traceback or a
huge allocation."""

from __future__ import annotations

import io
import json
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pt2_files import Draft, Held, write
from test_pt2 import linear, problems, symbolic

from spyrec import cli
from spyrec.frontend import import_torch
from spyrec.frontend.torch_graph import read_graph
from spyrec.ir.errors import ImportError_

# Files that are none ----------------------------------------------------------------------------


def broken(path: Path, change: Callable[[dict[str, bytes]], Any]) -> Path:
    """A good file after ``change`` of its members."""
    members = linear().members()
    change(members)
    return write(path / "m.pt2", members)


def edited(path: Path, change: Callable[[dict[str, Any]], Any], member: str = "") -> Path:
    """A good file after ``change`` of the JSON of its graph, or of another member."""
    name = f"m/{member or 'models/model.json'}"

    def edit(members: dict[str, bytes]) -> None:
        data = json.loads(members[name])
        change(data)
        members[name] = json.dumps(data).encode()

    return broken(path, edit)


def test_no_file(tmp_path: Path) -> None:
    path = tmp_path / "none.pt2"
    assert problems(path) == [f"{path} does not exist or is not a file."]
    assert problems(str(tmp_path)) == [f"{tmp_path} does not exist or is not a file."]


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\3\4" + b"\0" * 40, b"\x80\x02}q\0."])
def test_not_a_zip(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(data)
    assert problems(path) == [
        f"{path} is not a .pt2 file or is cut short: File is not a zip file; write one with "
        "torch.export.save."
    ]


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt2", {"data.pkl": b"\x80\x02}q\0."})
    assert problems(path) == [
        f"{path} holds 0 models called models/model.json where one is expected; write it with "
        "torch.export.save of torch 2.9 or later."
    ]


JSON_FAULTS: list[tuple[bytes, str]] = [
    (b"", "is not valid JSON: "), (b"{", "is not valid JSON: "), (b"\xff\xfe{}", "is not valid"),
    (b"[1]", "holds no JSON object."), (b"3", "holds no JSON object."),
    (b"null", "holds no JSON object."), (b"[" * 10**6, "is not valid JSON: "),
    (b'{"a":' * 10**6, "is not valid JSON: "), (b"9" * 10**5, "is not valid JSON: "),
]


@pytest.mark.parametrize(("text", "said"), JSON_FAULTS, ids=range(len(JSON_FAULTS)))
@pytest.mark.parametrize(
    "member", ["models/model.json", "data/weights/model_weights_config.json"]
)
def test_json_that_is_none(text: bytes, said: str, member: str, tmp_path: Path) -> None:
    path = broken(tmp_path, lambda m: m.update({f"m/{member}": text}))
    [sentence] = problems(path)
    assert sentence.startswith(f"{path}: m/{member} {said}")
    assert len(sentence) < 400


def put(*keys: Any, value: Any) -> Callable[[Any], None]:
    """Sets one place of a JSON value."""

    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


GRAPH = ("graph_module", "graph")
NODE = (*GRAPH, "nodes", 0)
GRAPH_FAULTS: list[tuple[Callable[[Any], None], str]] = [
    (put("schema_version", value={"major": 7, "minor": 1}),
     "is written in version 7 of torch's export schema; version 8 can be read; export it again "
     "with torch 2.9 or later."),
    (put("schema_version", value={}), "is written in version None of torch's export schema"),
    (put("schema_version", value=8), "'schema_version' is missing or is no dict."),
    (put("graph_module", value=[]), "'graph_module' is missing or is no dict."),
    (put("range_constraints", value=None), "'range_constraints' is missing or is no dict."),
    (put("range_constraints", value={"s0": 3}), "the range of 's0' is malformed."),
    (put("graph_module", "module_call_graph", value=5), ""),
    (put("graph_module", "module_call_graph", value=[{"fqn": "", "signature": 5}]), ""),
    (put(*GRAPH, value=None), "'graph' is missing or is no dict."),
    (put(*GRAPH, "nodes", value={}), "'nodes' is missing or is no list."),
    (put(*GRAPH, "nodes", value=[5]), "'inputs' is missing or is no list."),
    (put(*GRAPH, "tensor_values", value={"x": 1}), "'sizes' is missing or is no list."),
    (put(*GRAPH, "sym_int_values", value=[1]), "'sym_int_values' is no dict."),
    (put(*GRAPH, "tensor_values", "x", "sizes", value=[{"as_int": 1}] * 40),
     "a tensor has 40 dimensions, more than 32."),
    (put(*GRAPH, "tensor_values", "x", "sizes", 0, value={"as_int": -1}),
     "a size is -1, not from 0 to 2147483647."),
    (put(*GRAPH, "tensor_values", "x", "sizes", 0, value={"as_int": 2.5}),
     "a size is neither a number nor an expression."),
    (put(*GRAPH, "tensor_values", "x", "sizes", 0, value={}),
     "an argument has not exactly one kind."),
    (put(*NODE, "target", value=None), "'target' is missing or is no str."),
    (put(*NODE, "inputs", 0, value={"name": 3, "arg": {"as_int": 1}}),
     "'name' is missing or is no str."),
    (put(*NODE, "inputs", 0, "arg", value={"as_tensors": 3}),
     "an argument that should be a list is none."),
    (put(*NODE, "inputs", 0, "arg", value={"as_int": {}}),
     "an argument that should be a number or text is neither."),
    (put(*NODE, "inputs", 0, "arg", value={"as_scalar_type": [1]}),
     "an element type is no number."),
    (put(*NODE, "outputs", value=[{"as_tensor": {"name": []}}]),
     "'name' is missing or is no str."),
    (put(*NODE, "metadata", value={"stack_trace": 5}), ""),
    (put("graph_module", "signature", "input_specs", value=[{}]),
     "an input has not exactly one kind."),
    (put("graph_module", "signature", "output_specs", value=[{"user_output": {"arg": {
        "as_tensor": 5}}}]), "'name' is missing or is no str."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), GRAPH_FAULTS, ids=range(len(GRAPH_FAULTS)))
def test_a_graph_with_a_fault(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    path = edited(tmp_path, change)
    if not said:  # what it says there is not needed
        import_torch(path)
        return
    [sentence] = problems(path)
    assert sentence.startswith(f"{path} is ")
    assert said in sentence


MEANING_FAULTS: list[tuple[Callable[[Any], None], list[str]]] = [
    (put(*NODE, "inputs", 0, "arg", value={"as_tensor": {"name": "nowhere"}}),
     ["Operator aten.linear cannot be imported: it reads 'nowhere', which nothing before it "
      "defines (1 call: t3 (model.py:7))."]),
    (put(*NODE, "inputs", 0, "arg", value={"as_tensor": {"name": "t3"}}),
     ["Operator aten.linear cannot be imported: it reads 't3', which nothing before it defines "
      "(1 call: t3 (model.py:7))."]),
    (put(*NODE, "inputs", 0, "arg", value={"as_custom_obj": {"name": "x", "class_fqn": "A"}}), []),
    (put(*NODE, "inputs", 0, "name", value="other"),
     ["Operator aten.linear cannot be imported: its argument 'input' is missing "
      "(1 call: t3 (model.py:7))."]),
    (put(*NODE, "target", value="torch.ops.mylib.magic.default"),
     ["Operator mylib.magic cannot be imported: spyrec has no conversion for it "
      "(1 call: t3 (model.py:7))."]),
    (put(*GRAPH, "tensor_values", "x", "dtype", value=10),
     ["Input 'x' has element type complex64, which cannot be imported "
      "(first read by t3 (model.py:7))."]),
    (put(*GRAPH, "tensor_values", "x", "layout", value=1),
     ["Input 'x' is a sparse tensor; only dense tensors can be imported "
      "(first read by t3 (model.py:7))."]),
    (put(*GRAPH, "tensor_values", value={}),
     ["Input 'x' is no tensor; only dense tensors can be imported "
      "(first read by t3 (model.py:7))."]),
    (put(*GRAPH, "nodes", value=[]),
     ["The output 'output' cannot be given: it reads 't3', which nothing before it defines."]),
    (put("graph_module", "signature", "output_specs", 0, value={"loss_output": {"arg": {
        "name": "t3"}}}), ["The model returns no tensor: there is nothing to compile."]),
    (put("graph_module", "signature", "input_specs", 0, value={"custom_obj": {}}),
     ["The model takes an input of the kind custom_obj, which cannot be imported."]),
    (put("graph_module", "signature", "input_specs", 0, "parameter", "parameter_name", value="w"),
     ["The tensor 'w' is not in the file, or only as a pickle."]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), MEANING_FAULTS, ids=range(len(MEANING_FAULTS)))
def test_a_graph_that_means_nothing(
    change: Callable[[Any], None], said: list[str], tmp_path: Path
) -> None:
    path = edited(tmp_path, change)
    if said:
        assert set(said) <= set(problems(path))
    else:
        import_torch(path)


def test_graphs_that_nest_without_end(tmp_path: Path) -> None:
    """As a file they are too deep for JSON; in memory, for the reader."""
    inner = '{"as_graph": {"name": "g", "graph": {"inputs": [], "outputs": [], "nodes": ['
    text = json.dumps(linear().data())
    deep = '{"target": "a", "outputs": [], "inputs": [{"name": "", "arg": ' + inner
    path = broken(tmp_path, lambda m: m.update(
        {"m/models/model.json": text.replace('"nodes": [', '"nodes": [' + deep * 5000).encode()}
    ))  # fmt: skip
    assert "is not valid JSON" in problems(path)[0]
    data, nested = linear().data(), Draft()
    for _ in range(600):
        outer = Draft()
        outer.nodes = [{"target": "a", "outputs": [], "inputs": [{"name": "", "arg": {
            "as_graph": {"name": "g", "graph": nested.graph()}}}]}]  # fmt: skip
        nested = outer
    data["graph_module"]["graph"]["nodes"] = nested.nodes
    with pytest.raises(ImportError_, match=r"its graphs nest too deeply\.$"):
        read_graph(data, "the program")


def test_the_command_line_tells_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(linear_bytes()[:-30])
    assert cli.run(["compile", str(path)]) == 1
    err = capsys.readouterr().err
    assert f"{path} is not a .pt2 file or is cut short: " in err
    assert "Traceback" not in err
    assert cli.run(["compile", str(symbolic().save(path))]) == 1
    assert "add --bind x:0=2, or the size you need." in capsys.readouterr().err
    bound = ["compile", str(path), "--bind", "s77=3", "-o", str(tmp_path / "m.spx")]
    assert cli.run(bound) == 0


def test_damage_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    """Sizes that a graph claims for results are no reason to make them."""
    huge = 2**31 - 1
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for target, args in [
        ("aten.arange.default", {"end": huge}), ("aten.eye.default", {"n": huge}),
        ("aten.full.default", {"size": (huge, huge), "fill_value": 1.5}),
        ("aten.linspace.default", {"start": 0, "end": 1, "steps": huge}),
        ("aten.tril_indices.default", {"row": huge, "col": huge}),
    ]:  # fmt: skip
        d = Draft()
        x = d.input("x", "float32", 1)
        sizes = (huge,) if target[5:8] in ("ara", "lin") else (huge, huge)
        made = d.call(target, "float32", sizes, **args)
        path = d.returns(d.call("aten.add.Tensor", "float32", sizes, self=x, other=made))
        assert len(problems(path.save(tmp_path / "m.pt2"))) == 1
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


WEIGHT = ("config", "fc.weight")
META = (*WEIGHT, "tensor_meta")

WEIGHT_FAULTS: list[tuple[Callable[[Any], None], str]] = [
    (put(*WEIGHT, value=None), "the entry of the tensor 'fc.weight' is malformed."),
    (put(*WEIGHT, value={}), "the entry of the tensor 'fc.weight' is malformed."),
    (put("config", value=[]), "the configuration of its weights lists no tensors."),
    (put(*WEIGHT, "path_name", value=7), "the entry of the tensor 'fc.weight' is malformed."),
    (put(*WEIGHT, "path_name", value="../../../etc/passwd"),
     "the tensor 'fc.weight' is not in the archive (m/data/weights/../../../etc/passwd)."),
    (put(*META, "dtype", value=10),
     "the tensor 'fc.weight' has element type complex64, which cannot be imported."),
    (put(*META, "dtype", value=[]), "the entry of the tensor 'fc.weight' is malformed."),
    (put(*META, "sizes", 0, value={"as_int": -5}), "the entry of the tensor 'fc.weight' is malfo"),
    (put(*META, "sizes", 0, value={"as_int": True}), "the entry of the tensor 'fc.weight' is malf"),
    (put(*META, "sizes", 0, value={"as_int": 10**30}),
     "the tensor 'fc.weight' has an impossible shape, "),
    (put(*META, "sizes", value=[{"as_int": 1}] * 70), "the tensor 'fc.weight' has an impossible"),
    (put(*META, "sizes", 0, value={"as_int": 6}),
     "the tensor 'fc.weight' needs 96 bytes, m/data/weights/weight_0 has 80."),
    (put(*META, "strides", 0, value={"as_int": 10**20}), "the tensor 'fc.weight' needs 1600000"),
    (put(*META, "strides", 0, value={"as_int": -4}), "the entry of the tensor 'fc.weight' is malf"),
    (put(*META, "strides", value=[{"as_int": 1}]), "the tensor 'fc.weight' has an impossible"),
    (put(*META, "storage_offset", value={"as_int": 1}),
     "the tensor 'fc.weight' needs 84 bytes, m/data/weights/weight_0 has 80."),
]


@pytest.mark.parametrize(("change", "said"), WEIGHT_FAULTS, ids=range(len(WEIGHT_FAULTS)))
def test_a_weight_with_a_fault(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    path = edited(tmp_path, change, "data/weights/model_weights_config.json")
    [sentence] = problems(path)
    assert sentence.startswith(f"{path}: ")
    assert said in sentence


def test_a_weight_of_another_shape_than_the_graph_says(tmp_path: Path) -> None:
    path = edited(tmp_path, put(*META, "sizes", value=[{"as_int": 4}, {"as_int": 5}]),
                  "data/weights/model_weights_config.json")  # fmt: skip
    assert problems(path) == [
        "The tensor 'fc.weight' has the shape [4, 5] and type f32, in the graph [5, 4] and f32."
    ]


def test_a_pickled_weight_is_never_opened(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["config"]["fc.weight"]["use_pickle"] = True

    path = edited(tmp_path, change, "data/weights/model_weights_config.json")
    assert problems(path) == ["The tensor 'fc.weight' is not in the file, or only as a pickle."]


def test_a_repeated_element_makes_no_huge_array(tmp_path: Path) -> None:
    """Strides of zero: 16 GiB out of four bytes."""
    d = Draft()
    d.storages["s"] = bytes(4)
    w = d.stored("w", Held("float32", (1 << 16, 1 << 15), (0, 0), member="s"))
    x = d.input("x", "float32", 1)
    path = d.returns(d.call("aten.add.Tensor", "float32", (1 << 16, 1 << 15), self=x, other=w))
    [said] = problems(path.save(tmp_path / "m.pt2"))
    assert said.endswith("m.pt2: the tensor 'w' makes 8589934592 bytes of 4.")


def test_members_missing_or_compressed(tmp_path: Path) -> None:
    gone = broken(tmp_path, lambda m: m.pop("m/data/weights/weight_0"))
    assert problems(gone) == [
        f"{gone}: the tensor 'fc.weight' is not in the archive (m/data/weights/weight_0)."
    ]
    members = linear().members() | {"m/data/weights/weight_1": bytes(20)}
    packed = write(tmp_path / "p.pt2", members, ["m/data/weights/weight_1"])
    assert problems(packed) == [
        f"{packed}: the tensor 'fc.bias' is compressed, which torch does not do."
    ]
    bomb = {**members, "m/models/model.json": b" " * (64 << 20)}
    packed = write(tmp_path / "b.pt2", bomb, ["m/models/model.json"])
    assert problems(packed) == [
        f"{packed}: m/models/model.json is compressed, which torch does not do."
    ]


def test_a_member_that_claims_to_be_huge(tmp_path: Path) -> None:
    """The sizes in the directory of the zip are what a reader would make room for."""
    path = linear().save(tmp_path / "m.pt2")
    data = bytearray(path.read_bytes())
    for name in (b"m/models/model.json", b"m/data/weights/weight_0"):
        at = data.rfind(name) - 46  # its entry in the central directory
        assert data[at : at + 4] == b"PK\1\2"
        spoilt = bytearray(data)
        spoilt[at + 20 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little") * 2
        path.write_bytes(bytes(spoilt))
        assert len(problems(path)) == 1


def test_two_members_of_one_name(tmp_path: Path) -> None:
    path = linear().save(tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("m/data/weights/weight_0", bytes(80))
    assert problems(path) == [f"{path} holds two members called m/data/weights/weight_0."]


def test_the_other_byte_order(tmp_path: Path) -> None:
    path = broken(tmp_path, lambda m: m.update({"m/byteorder": b"big"}))
    assert problems(path) == [f"{path} was written on a machine of the other byte order."]


# Damage -----------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_imported_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("d") / "m.pt2"
    whole = symbolic_bytes() if data.draw(st.booleans()) else linear_bytes()
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        near_end = data.draw(st.booleans())
        low = len(spoilt) - 1400 if near_end else 0
        spoilt[data.draw(st.integers(low, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(spoilt))
    refused_in_words(path)


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 0.999))
def test_a_file_cut_anywhere_is_refused(
    cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("c") / "m.pt2"
    whole = linear_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    assert "is not a .pt2 file or is cut short" in problems(path)[0]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["x", "t3", "Infinity", "Symbol('s77')", "9**9**9", "p_fc_weight"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["as_int", "as_tensor", "as_tensors", "as_graph", "name",
                                       "as_none", "as_expr", "expr_str", "as_ints", "as_sym_ints",
                                       "as_name", "as_scalar_type", "as_optional_tensors"]),
                      inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_json_with_anything_anywhere(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    members = (symbolic() if data.draw(st.booleans()) else linear()).members()
    name = data.draw(st.sampled_from([n for n in members if n.endswith(".json")]))
    whole = json.loads(members[name])
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(everywhere(whole))
        if places:
            owner, key = data.draw(st.sampled_from(places))
            owner[key] = data.draw(VALUES)
    members[name] = json.dumps(whole).encode()
    refused_in_words(write(tmp_path_factory.mktemp("j") / "m.pt2", members))


def everywhere(data: Any) -> Any:
    """Each place in a JSON value, as (what holds it, key)."""
    kinds: dict[type, Any] = {dict: dict.items, list: enumerate}
    for key, value in kinds.get(type(data), lambda _: ())(data):
        yield data, key
        yield from everywhere(value)


def refused_in_words(path: Path) -> None:
    try:
        import_torch(path, {"s77": 3} if b"s77" in path.read_bytes() else {})
    except ImportError_ as error:
        assert error.problems
        assert all(sentence.endswith(".") for sentence in error.problems), error.problems


def linear_bytes() -> bytes:
    return _bytes_of(linear)


def symbolic_bytes() -> bytes:
    return _bytes_of(symbolic)


def _bytes_of(make: Callable[[], Draft]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in make().members().items():
            archive.writestr(name, data)
    return stream.getvalue()
