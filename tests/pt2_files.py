"""Exported PyTorch programs written without torch: a graph is described call by call and becomes
the JSON and the zip that torch 2.9 and later write (export schema 8)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spyrec.frontend.torch_graph import ELEMENTS

Json = dict[str, Any]
NUMBER_OF = {name: number for number, name in ELEMENTS.items()}
STRIDED = 7


class Name(str):
    """Of a tensor in the graph."""


class Sym(str):
    """The name of a size in the graph."""


class Expr(str):
    """A size as an expression over symbols, in sympy's spelling."""


class Kind(str):
    """An element type as an argument: Kind("float32")."""


def symbol(name: str) -> Expr:
    return Expr(f"Symbol('{name}', positive=True, integer=True)")


def argument(value: Any) -> Json:
    """A Python value as one of the schema's kinds of argument."""
    match value:
        case dict():
            return value  # spelled out already
        case None:
            return {"as_none": True}
        case Name():
            return {"as_tensor": {"name": str(value)}}
        case Sym():
            return {"as_sym_int": {"as_name": str(value)}}
        case Kind():
            return {"as_scalar_type": NUMBER_OF[value]}
        case Draft():
            return {"as_graph": {"name": "inner", "graph": value.graph()}}
        case bool():
            return {"as_bool": value}
        case int():
            return {"as_int": value}
        case float():
            return {"as_float": _finite(value)}
        case str():
            return {"as_string": value}
        case tuple() | list():
            return _several(list(value))
    raise TypeError(value)


def _several(values: list[Any]) -> Json:
    if values and all(isinstance(v, Name) for v in values):
        return {"as_tensors": [{"name": str(v)} for v in values]}
    if any(isinstance(v, Name) or v is None for v in values):
        return {"as_optional_tensors": [argument(v) for v in values]}
    if any(isinstance(v, Sym) for v in values):
        sizes = [{"as_name": str(v)} if isinstance(v, Sym) else {"as_int": v} for v in values]
        return {"as_sym_ints": sizes}
    if any(isinstance(v, float) for v in values):
        return {"as_floats": [_finite(v) for v in values]}
    if any(isinstance(v, bool) for v in values):
        return {"as_bools": values}
    return {"as_ints": values}


def _finite(value: float) -> float | str:
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def tensor_meta(
    element: str, sizes: Sequence[int | Expr], strides: Sequence[int] | None = None, offset: int = 0
) -> Json:
    """A tensor's description; strides are those of a contiguous one when left out."""
    if strides is None:
        made, strides = 1, []
        for n in reversed(sizes):
            strides.insert(0, made)
            made *= n if isinstance(n, int) else 2
    return {
        "dtype": NUMBER_OF[element], "sizes": [_size(n) for n in sizes], "requires_grad": False,
        "device": {"type": "cpu", "index": None}, "strides": [_size(n) for n in strides],
        "storage_offset": {"as_int": offset}, "layout": STRIDED,
    }  # fmt: skip


def _size(n: int | Expr) -> Json:
    if isinstance(n, Expr):
        return {"as_expr": {"expr_str": str(n), "hint": {"as_int": 2}}}
    return {"as_int": n}


@dataclass(frozen=True)
class Held:
    """A weight in the archive: a strided part of the storage ``member``."""

    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    member: str = ""


@dataclass(eq=False)
class Draft:
    """A graph under construction. ``held``: the weights by name; ``storages``: their bytes by
    member. A nested graph is a Draft of its own, given as an argument of a call."""

    tensors: dict[str, Json] = field(default_factory=dict)
    numbers: dict[str, Json] = field(default_factory=dict)
    ranges: dict[str, Json] = field(default_factory=dict)
    inputs: list[Json] = field(default_factory=list)
    input_specs: list[Json] = field(default_factory=list)
    nodes: list[Json] = field(default_factory=list)
    outputs: list[Json] = field(default_factory=list)
    output_specs: list[Json] = field(default_factory=list)
    held: dict[str, tuple[str, Held]] = field(default_factory=dict)
    storages: dict[str, bytes] = field(default_factory=dict)
    out_spec: Any = None

    def input(self, name: str, element: str, *sizes: int | Expr) -> Name:
        self.tensors[name] = tensor_meta(element, sizes)
        self.inputs.append(argument(Name(name)))
        self.input_specs.append({"user_input": {"arg": argument(Name(name))}})
        return Name(name)

    def weight(self, name: str, array: Any, kind: str = "parameter") -> Name:
        """A contiguous weight with a storage of its own; ``kind``: parameter, buffer or
        tensor_constant."""
        data = np.asarray(array)
        member = f"weight_{len(self.storages)}"
        self.storages[member] = data.astype(data.dtype.newbyteorder("<")).tobytes()
        return self.stored(name, Held(str(data.dtype), data.shape, member=member), kind)

    def stored(self, name: str, held: Held, kind: str = "parameter") -> Name:
        """A weight as its entry says, in a storage that is there or will be."""
        local = f"{kind[0]}_{name.replace('.', '_')}"
        self.held[name] = (kind, held)
        self.tensors[local] = tensor_meta(held.element, held.sizes, held.strides, held.offset)
        self.inputs.append(argument(Name(local)))
        more = {"persistent": True} if kind == "buffer" else {}
        self.input_specs.append({kind: {"arg": {"name": local}, f"{kind}_name": name, **more}})
        return Name(local)

    def call(
        self, target: str, element: str, sizes: Sequence[int | Expr], /, *, trace: str = "",
        out: str = "", **args: Any,
    ) -> Name:
        """A call with one tensor as its result."""
        [made] = self.calls(target, (element, sizes, out), trace=trace, **args)
        return made

    def calls(
        self, target: str, /, *results: tuple[str, Sequence[int | Expr], str], trace: str = "",
        listed: bool = False, **args: Any,
    ) -> tuple[Name, ...]:
        """A call with some tensors as its results; ``listed``: in one list. Arguments whose names
        begin with _ have no name."""
        made = tuple(Name(out or f"t{len(self.tensors) + i}")
                     for i, (_, _, out) in enumerate(results))
        for name, (element, sizes, _) in zip(made, results, strict=True):
            self.tensors[name] = tensor_meta(element, sizes)
        outs = [argument(made)] if listed else [argument(name) for name in made]
        self._node(target, outs, made[0] if made else target, trace, args)
        return made

    def number(self, target: str, name: str, value: Expr | int, /, **args: Any) -> Sym:
        """A call whose result is a size."""
        self.numbers[name] = _size(value)
        self._node(target, [argument(Sym(name))], name, "", args)
        return Sym(name)

    def _node(
        self, target: str, outs: list[Json], name: str, trace: str, args: Mapping[str, Any]
    ) -> None:
        inputs = [
            {"name": "" if key.startswith("_") else key, "arg": argument(value), "kind": 1}
            for key, value in args.items()
        ]
        self.nodes.append({
            "target": target if target.startswith(("_", "math.")) else f"torch.ops.{target}",
            "inputs": inputs, "outputs": outs, "metadata": {"stack_trace": trace},
            "is_hop_single_tensor_return": None, "name": str(name),
        })  # fmt: skip

    def returns(self, *values: Any, spec: Any = None) -> Draft:
        """What the graph gives; ``spec``: the structure, as ``leaf`` and ``tree`` make it."""
        self.outputs += [argument(v) for v in values]
        self.output_specs += [{"user_output": {"arg": argument(v)}} for v in values]
        leaves = [leaf()] * len(values)
        self.out_spec = spec or (leaves[0] if len(values) == 1 else tree("tuple", None, *leaves))
        return self

    def mutates(self, value: Name, kind: str, of: str) -> Draft:
        """The value replaces a buffer, a parameter or an input: it is given before the others."""
        key = {"user_input": "user_input_name"}.get(kind, f"{kind}_name")
        self.outputs.insert(0, argument(value))
        self.output_specs.insert(0, {f"{kind}_mutation": {"arg": {"name": str(value)}, key: of}})
        return self

    # -- what is written

    def graph(self) -> Json:
        return {
            "inputs": self.inputs, "outputs": self.outputs, "nodes": self.nodes,
            "tensor_values": self.tensors, "sym_int_values": self.numbers, "sym_bool_values": {},
            "is_single_tensor_return": False, "custom_obj_values": {}, "sym_float_values": {},
        }  # fmt: skip

    def data(self) -> Json:
        """The program as models/model.json has it."""
        given = [leaf() for s in self.input_specs if "user_input" in s]
        in_spec = tree("tuple", None, tree("tuple", None, *given), tree("dict", []))
        signature = {
            "inputs": [], "outputs": [], "in_spec": json.dumps([1, in_spec]),
            "out_spec": json.dumps([1, self.out_spec]),
            "forward_arg_names": [
                next(iter(s["user_input"]["arg"].values()))["name"] for s in self.input_specs
                if "as_tensor" in s.get("user_input", {}).get("arg", {})
            ],
        }  # fmt: skip
        return {
            "graph_module": {
                "graph": self.graph(),
                "signature": {"input_specs": self.input_specs, "output_specs": self.output_specs},
                "module_call_graph": [{"fqn": "", "signature": signature}],
                "metadata": {}, "treespec_namedtuple_fields": {},
            },
            "opset_version": {"aten": 10}, "range_constraints": self.ranges,
            "schema_version": {"major": 8, "minor": 20}, "verifiers": ["TRAINING"],
            "torch_version": "2.13.0", "guards_code": [],
        }  # fmt: skip

    def members(self, root: str = "m") -> dict[str, bytes]:
        """The members of the archive."""
        tables: dict[str, Json] = {"weights": {}, "constants": {}}
        found: dict[str, bytes] = {}
        for name, (kind, held) in self.held.items():
            folder = "constants" if kind == "tensor_constant" else "weights"
            tables[folder][name] = {
                "path_name": held.member, "is_param": kind == "parameter", "use_pickle": False,
                "tensor_meta": tensor_meta(held.element, held.sizes, held.strides, held.offset),
            }
            if held.member in self.storages:
                found[f"{root}/data/{folder}/{held.member}"] = self.storages[held.member]
        for folder, table in tables.items():
            text = json.dumps({"config": table}).encode()
            found[f"{root}/data/{folder}/model_{folder}_config.json"] = text
        found[f"{root}/models/model.json"] = json.dumps(self.data()).encode()
        others = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little",
                  ".data/version": b"3\n"}  # fmt: skip
        return {**found, **{f"{root}/{name}": data for name, data in others.items()}}

    def save(self, path: Path) -> Path:
        return write(path, self.members(path.stem))


def write(
    path: Path, members: Mapping[str, bytes], compress: Sequence[str] = ()
) -> Path:
    """An archive of the members; those in ``compress`` compressed."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            how = zipfile.ZIP_DEFLATED if name in compress else zipfile.ZIP_STORED
            archive.writestr(name, data, compress_type=how)
    return path


def leaf() -> Json:
    return {"type": None, "context": None, "children_spec": []}


def tree(kind: str, context: Any, *children: Json) -> Json:
    """A node of a returned structure: tuple, list, or a dict whose context is its keys."""
    return {
        "type": f"builtins.{kind}", "context": json.dumps(context), "children_spec": [*children]
    }
