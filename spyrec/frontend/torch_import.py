"""Walks an exported PyTorch graph and builds the tensor-stage module: bind dimensions, fold what is
known, convert each call through one table, and report everything that cannot be converted at
once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from spyrec.ir.core import Attr, Block, Builder, Loc, Module, Value
from spyrec.ir.errors import ImportError_, SpyrecError
from spyrec.ir.types import DType, TensorType

from .bind import MAX_DIM, ConstValue, FreeDim, Given, bind_dims, const_inputs
from .emit import F64, Emitter, Known, Unsupported, clean, unset
from .torch_graph import Arg, Call, ExportGraph, Input, Nested, Ref, TensorMeta
from .torch_ops import CONVERTERS
from .torch_place import place_of, read_by, sparse_input, unsupported_sentences
from .torch_site import DTYPE_OF, Item, Site, element_dtype, scalar_dtype
from .torch_state import Storage, base_target, write_in_place
from .torch_symbols import Open, Unreadable, lone_symbol, size_of
from .torch_writes import flat, gives_view, packet_of, written_tensors

IGNORED = (
    "aten._assert_tensor_metadata", "aten._assert_scalar", "aten._assert_async",
    "aten.sym_constrain_range", "aten.sym_constrain_range_for_size", "_operator.assert",
)  # fmt: skip
"""Calls that check what the export has proven, and give nothing."""

MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError)
"""What a conversion may raise when arguments are not as torch's schema says, as in a forged file;
the OpInfo test sees to it that no sample of torch's own raises one."""

WRAPPERS = ("higher_order.wrap_with_set_grad_enabled", "higher_order.wrap_with_autocast")
"""Calls that carry out a nested graph as it is; outside of training they change nothing."""

SCALARS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (
        "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "eq", "ne", "lt", "le",
        "gt", "ge", "and_", "or_", "not_",
    )},
    "sym_max": max, "sym_min": min, "sym_not": operator.not_, "sym_float": float, "sym_int": int,
    "ceil": math.ceil, "floor": math.floor, "trunc": math.trunc, "sym_sqrt": math.sqrt,
    "sym_ite": lambda cond, yes, no: yes if cond else no,
}  # fmt: skip
"""Functions on sizes and other numbers, by the last part of their name."""

NUMBER_MODULES = ("_operator", "math", "sym_max", "sym_min", "sym_not", "sym_float", "sym_ite")

Weight = TensorType | Callable[[], tuple[np.ndarray, DType]]
"""How to get the elements of a tensor and their format, or only its type: then it is absent, as on
torch's meta device, and becomes an input of the program."""

Weights = Mapping[str, Weight]
"""By the names of parameters, buffers and constants."""


@dataclass(frozen=True)
class Absent:
    """Stands for a result of a call that could not be converted and has been reported."""


@dataclass(frozen=True)
class Untold:
    """Stands for a result that the conversion of ``packet`` does not give."""

    packet: str


@dataclass(eq=False)
class _Walk:
    """One import under way. ``scope``: what each name stands for; ``unsupported``: (operator,
    reason) -> places; ``problems``: whole sentences; ``stores``: of tensors that are written in
    place, by the name each was first called."""

    emitter: Emitter
    symbols: Mapping[str, int]
    tensors: Mapping[str, TensorMeta]
    scope: dict[str, Item | Storage | Absent | Untold] = field(default_factory=dict)
    unsupported: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def import_exported(
    graph: ExportGraph,
    weights: Weights,
    name: str,
    bind: Mapping[str, int] = MappingProxyType({}),
    const: Mapping[str, ConstValue] = MappingProxyType({}),
    write_back: bool = False,
) -> Module:
    """The tensor-stage module of an exported program. ``bind`` and ``const`` are as for
    ``import_onnx``; a dimension's name is its symbol. What the model returns that is no tensor is
    no output. With ``write_back`` inputs may be written in place: each of ``written_inputs`` is one
    more output, called NAME.written. ImportError_ lists everything that stands in the way."""
    types, symbols = _bound(graph, bind)
    fixed = const_inputs(types, const)
    written = written_tensors(graph.calls, graph.tensors)
    written |= {o.of for o in graph.outputs if o.kind == "state"}
    state = _state(graph, written, weights)
    args = {n: Value(n, t) for n, t in types.items() if n not in fixed}
    args |= {n: Value(n, TensorType(a.shape, dtype)) for n, (a, dtype) in state.items()}
    walk = _Walk(Emitter(Builder(args)), symbols, graph.tensors)
    for given in graph.inputs:
        walk.scope[given.name] = _given(walk, given, args, fixed, types, weights)
    for name_ in (i.name for i in graph.inputs if i.name in written):
        walk.scope[name_] = _stored(walk, name_)
    _convert_all(walk, graph.calls, written)
    results = _outputs(walk, graph)
    changed = written_inputs(graph)
    if write_back:
        results |= {f"{name_}.written": _value(walk, Ref(name_), name_) for name_ in changed}
    elif changed:
        walk.problems.append(
            f"The model writes into its input {', '.join(map(repr, changed))}; return the changed "
            "tensor instead."
        )
    for given in graph.inputs:
        if given.of in state:
            results[next_name(given.of)] = _value(walk, _new_state(graph, given), given.of)
    problems = unsupported_sentences(walk.unsupported) + walk.problems
    if not results and not problems:
        problems = ["The model returns no tensor: there is nothing to compile."]
    if problems:
        raise ImportError_(list(dict.fromkeys(problems)))
    attrs: dict[str, Attr] = {"stage": "tensor", "warnings": ()}
    if walk.emitter.weights:
        attrs["absent"] = tuple(v.name for v in walk.emitter.weights.values())
    if state:
        attrs["state"] = tuple((n, next_name(n), array) for n, (array, _) in state.items())
    shown = {n: v for n, v in results.items() if v is not None}
    ops = tuple(walk.emitter.builder.ops)
    inputs = (*args.values(), *walk.emitter.weights.values())
    block = Block(inputs, ops, tuple(shown.values()))
    return Module(name, block, tuple(shown), MappingProxyType(attrs))


# Inputs ------------------------------------------------------------------------------------------


def _bound(
    graph: ExportGraph, bind: Mapping[str, int]
) -> tuple[dict[str, TensorType], dict[str, int]]:
    """Input name -> static type, and the value of each symbol."""
    problems: list[str] = []
    read = [g for i in graph.inputs if i.kind == "user" and (g := _read(graph, i, problems))]
    sizes = bind_dims(read, bind, problems)
    symbols = {d.name: n for d, n in sizes.items() if d.name}
    types = {}
    for given in read:
        dims = [sizes.get(d) if isinstance(d, FreeDim) else d for d in given.dims]
        for axis, size in enumerate(graph.tensors[given.name].sizes):
            if isinstance(size, str) and not lone_symbol(size):
                dims[axis] = _size(size, symbols, f"Input '{given.name}'", problems)
        if all(d is not None for d in dims):
            types[given.name] = TensorType(tuple(d for d in dims if d is not None), given.dtype)
    if problems:
        raise ImportError_(list(dict.fromkeys(problems)))
    return types, symbols


def _read(graph: ExportGraph, given: Input, problems: list[str]) -> Given | None:
    meta = graph.tensors.get(given.name)
    if meta is None or not meta.strided:
        read = read_by(graph.calls, given.name)
        none = f"Input '{given.name}' is no tensor; only dense tensors can be imported{read}."
        problems.append(none if meta is None else sparse_input(given.name, read))
        return None
    try:
        dtype = element_dtype(meta.element if meta.element != "float64" else "")
    except Unsupported:
        mend = "; use float32" if meta.element == "float64" else ""
        problems.append(
            f"Input '{given.name}' has element type {meta.element}, which cannot be imported{mend}"
            f"{read_by(graph.calls, given.name)}."
        )
        return None
    dims: list[int | FreeDim] = []
    for axis, size in enumerate(meta.sizes):
        symbol = lone_symbol(size) if isinstance(size, str) else ""
        low, high = graph.ranges.get(symbol, (None, None))
        if symbol:
            range_ = low or 0, high or MAX_DIM
            dims.append(FreeDim(given.name, axis, symbol, len(meta.sizes), *range_, True))
        else:
            dims.append(0 if isinstance(size, str) else size)
    return Given(given.name, dtype, tuple(dims))


def _size(
    text: str, symbols: Mapping[str, int], where: str, problems: list[str]
) -> int | None:
    try:
        return size_of(text, symbols)
    except Open:
        return None  # the symbol's own dimension has been complained about
    except Unreadable as error:
        problems.append(f"{where} has a size that is not understood: {error}.")
        return None


def _given(
    walk: _Walk, given: Input, args: Mapping[str, Value], fixed: Mapping[str, np.ndarray],
    types: Mapping[str, TensorType], weights: Weights,
) -> Item | Absent:  # fmt: skip
    loc = Loc((given.of or given.name,))
    if given.kind == "user":
        if given.name in args:
            return args[given.name]
        return Known(given.name, fixed[given.name], types[given.name].dtype, loc)
    if given.kind == "constant":
        return given.value  # type: ignore[return-value]
    if given.of in args:  # state: a tensor that outlives a run
        return args[given.of]
    if given.kind != "weight":
        walk.problems.append(
            f"The model takes an input of the kind {given.kind}, which cannot be imported."
        )
        return Absent()
    if given.of not in weights:
        walk.problems.append(f"The tensor '{given.of}' is not in the file, or only as a pickle.")
        return Absent()
    array, dtype, absent = _elements(weights[given.of])
    told, shape = walk.tensors.get(given.name), [*array.shape]
    if told and ([*told.sizes], DTYPE_OF.get(told.element)) != (shape, dtype.name):
        walk.problems.append(
            f"The tensor '{given.of}' has the shape {shape} and type {dtype}, in the graph "
            f"{[*told.sizes]} and {DTYPE_OF.get(told.element, told.element)}."
        )
        return Absent()
    return Known(given.of, array, dtype, loc, absent)


def _elements(weight: Weight) -> tuple[np.ndarray, DType, bool]:
    """Of a weight the elements, their format, and whether they are absent."""
    if isinstance(weight, TensorType):
        return unset(weight), weight.dtype, True
    return *weight(), False


def _state(
    graph: ExportGraph, written: set[str], weights: Weights
) -> dict[str, tuple[np.ndarray, DType]]:
    """The buffers that the model changes, with what they hold at first."""
    changed = [i.of for i in graph.inputs if i.kind == "weight" and {i.name, i.of} & written]
    return {name: _elements(weights[name])[:2] for name in changed if name in weights}


def _new_state(graph: ExportGraph, given: Input) -> Ref:
    """What a buffer holds after a run: an output of its own, or what was written into it."""
    told = (o.value for o in graph.outputs if o.kind == "state" and o.of == given.of)
    found = next(told, None)
    return found if isinstance(found, Ref) else Ref(given.name)


def next_name(state: str) -> str:
    """The output that is a state's value after a run."""
    return f"{state}.next"


# Calls -------------------------------------------------------------------------------------------


def _convert_all(walk: _Walk, calls: Iterable[Call], written: set[str]) -> None:
    for call in calls:
        results = _convert(walk, call, written)
        for name, result in zip(call.outputs, results, strict=False):
            if name is not None:
                walk.scope[name] = result


def _convert(
    walk: _Walk, call: Call, written: set[str]
) -> Sequence[Item | Storage | Absent | Untold]:
    """The results of a call, one for each of its outputs."""
    failed = [Absent()] * len(call.outputs)
    packet = packet_of(call.target)
    if packet in IGNORED:
        return failed
    try:
        args = {name: _resolved(walk, arg) for name, arg in call.args.items()}
        if any(isinstance(a, Absent) for a in flat(args.values())):
            return failed
        if packet in WRAPPERS:
            return _inlined(walk, call, written)
        if packet == "higher_order.cond":
            return _inlined(walk, _branch(call, args), written)
        scalar = _size_of(args) if packet == "aten.sym_size" else _scalar(packet, args.values())
        if scalar is not None:
            return [scalar]
        site = _site(walk, call, args)
        written_as = base_target(packet)
        converter = CONVERTERS.get(written_as or packet)
        if written_as is not None:
            return [write_in_place(site, _storage(walk, call), converter)]
        if converter is None:
            raise Unsupported("spyrec has no conversion for it")
        if gives_view(walk.tensors, call, packet) and (stored := _storage(walk, call)) is not None:
            return stored.views(site, packet, converter)
        found = converter(site)
        results: list[Any] = list(found) if isinstance(found, tuple | list) else [found]
        if any(isinstance(r, Value) and r.type.dtype == F64 for r in results):
            raise Unsupported("it computes in float64, which the device has not; use float32")
        for i, name in enumerate(call.outputs):
            if name in written and i < len(results):
                results[i] = Storage(walk.emitter.value(results[i]), name or "")
        return results + [Untold(packet)] * (len(call.outputs) - len(results))
    except Unsupported as why:
        walk.unsupported.setdefault((packet, str(why)), []).append(place_of(call))
    except SpyrecError as error:
        sentence = str(error).rstrip(".")
        walk.problems.append(f"The call {place_of(call)} of {packet} is malformed: {sentence}.")
    except MISFITS as error:
        walk.problems.append(
            f"The call {place_of(call)} of {packet} has not the arguments it should have "
            f"({type(error).__name__}: {error}); if torch wrote it, this is a defect of spyrec."
        )
    return failed


def _size_of(args: Mapping[str, Any]) -> int:
    return int(args["self"].type.static_shape[args["dim"]])


def _scalar(packet: str, args: Collection[Any]) -> Item:
    """The result of a function on numbers, None when it is none."""
    module, _, last = packet.rpartition(".")
    if module not in ("_operator", "math", "torch") or last not in SCALARS:
        return None
    if not all(isinstance(a, bool | int | float) for a in args):
        raise Unsupported("it computes with a number that is only known at run time")
    found: Item = SCALARS[last](*args)
    return found


def _branch(call: Call, args: Mapping[str, Any]) -> Call:
    """A condition as the call of the branch that runs, when that is known."""
    which = args.get("_0")
    if isinstance(which, Known) and which.array.size == 1:
        which = which.array.item()
    if isinstance(which, Value):
        raise Unsupported("which of its branches runs is only known at run time")
    chosen = "_1" if which else "_2"
    return replace(call, args={n: a for n, a in call.args.items() if n in (chosen, "_3")})


def _inlined(
    walk: _Walk, call: Call, written: set[str]
) -> Sequence[Item | Storage | Absent | Untold]:
    body = next((a for a in call.args.values() if isinstance(a, Nested)), None)
    if body is None:
        raise Unsupported("the graph it carries out is missing")
    after = [*call.args.values()]
    given = after[after.index(body) + 1:]
    flat = [g for one in given for g in (one if isinstance(one, tuple) else (one,))]
    names = [i.name if isinstance(i, Ref) else "" for i in body.inputs]
    inside = dict(zip(names, (_held(walk, outer) for outer in flat), strict=False))
    outside = walk.scope, walk.tensors
    walk.scope, walk.tensors = inside, body.tensors
    try:
        _convert_all(walk, body.calls, written)
        return [_held(walk, out) for out in body.outputs]
    finally:
        walk.scope, walk.tensors = outside


def _held(walk: _Walk, arg: Arg) -> Any:
    """As ``_resolved``, but a tensor that is written in place stays what is written."""
    found = walk.scope.get(arg.name) if isinstance(arg, Ref) else None
    return found if isinstance(found, Storage) else _resolved(walk, arg)


def _resolved(walk: _Walk, arg: Arg) -> Any:
    """An argument with names replaced by what they stand for, as of now."""
    if isinstance(arg, Ref):
        if arg.name not in walk.scope:
            raise Unsupported(f"it reads '{arg.name}', which nothing before it defines")
        found = walk.scope[arg.name]
        if isinstance(found, Untold):
            raise Unsupported(f"of {found.packet} only the first result can be used")
        return found.read() if isinstance(found, Storage) else found
    if isinstance(arg, tuple):
        return tuple(_resolved(walk, a) for a in arg)
    return arg


def _site(walk: _Walk, call: Call, args: Mapping[str, Item]) -> Site:
    types = []
    for name in call.outputs:
        meta = walk.tensors.get(name or "")
        if meta is not None:
            types.append(_type(walk, meta))
    hint = clean(next((o for o in call.outputs if o), call.name))
    return Site(Loc((place_of(call),)), hint, walk.emitter, call.target, args, tuple(types))


def _type(walk: _Walk, meta: TensorMeta) -> TensorType:
    if not meta.strided:
        raise Unsupported("it makes a sparse tensor")
    try:
        sizes = [s if isinstance(s, int) else size_of(s, walk.symbols) for s in meta.sizes]
    except Open:
        raise Unsupported("the size of its result is only known at run time") from None
    except Unreadable as error:
        raise Unsupported(f"the size of its result is not understood: {error}") from None
    return TensorType(tuple(sizes), element_dtype(meta.element))


# In-place writes ---------------------------------------------------------------------------------


def _storage(walk: _Walk, call: Call) -> Storage | None:
    source = next(iter(call.args.values()), None)
    found = walk.scope.get(source.name) if isinstance(source, Ref) else None
    return found if isinstance(found, Storage) else None


def _stored(walk: _Walk, name: str) -> Storage | Absent:
    found = walk.scope[name]
    if isinstance(found, Value | Known):
        return Storage(found, name)
    return Absent()


# Results and messages ----------------------------------------------------------------------------


def _outputs(walk: _Walk, graph: ExportGraph) -> dict[str, Value | None]:
    """Of each tensor the model returns the value, None when it could not be converted."""
    shown = [o.value for o in graph.outputs if o.kind == "user"]
    named = zip(graph.output_names, shown, strict=True)
    return {name: _value(walk, ref, name) for name, ref in named if isinstance(ref, Ref)}


def _value(walk: _Walk, ref: Ref, name: str) -> Value | None:
    try:
        item = _resolved(walk, ref)
    except Unsupported as why:
        walk.problems.append(f"The output '{name}' cannot be given: {why}.")
        return None
    if isinstance(item, bool | int | float):
        dtype = scalar_dtype(item)
        item = Known(name, np.asarray(item, dtype.np_dtype), dtype, Loc((name,)))
    if isinstance(item, Value | Known):
        return walk.emitter.value(item)
    if not isinstance(item, Absent):
        walk.problems.append(f"The output '{name}' is no tensor.")
    return None


def written_inputs(graph: ExportGraph) -> tuple[str, ...]:
    """The user inputs that the model writes in place."""
    written = written_tensors(graph.calls, graph.tensors)
    written |= {o.of for o in graph.outputs if o.kind == "input"}
    return tuple(i.name for i in graph.inputs if i.kind == "user" and i.name in written)
