"""``torch.compile(model, backend="spyrec")``: captured graphs are compiled and run, functionally,
on the simulated device.

torch finds this file through the entry point ``torch_dynamo_backends`` when the backend is asked
for by name; nothing is imported before that. Options go through ``options=``: ``device``,
``numerics``, ``passes``, ``cache`` as for ``spyrec.compile``, and ``report``, a file to write the
last run's report to.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch._dynamo.convert_frame import compile_lock

from spyrec import api, files
from spyrec.frontend.torch_graph import Ref
from spyrec.frontend.torch_import import import_exported, written_inputs
from spyrec.frontend.torch_live import exported, host_array, read_exported
from spyrec.ir.errors import SpyrecError

KEPT = 8  # programs of one graph
OPTIONS = ("device", "numerics", "passes", "report", "cache")

_LOCK = RLock()  # one graph runs at a time
_reports: list[dict[str, Any]] = []


def last_report() -> dict[str, Any]:
    """The report of the last graph that ran. SpyrecError when none has."""
    if not _reports:
        raise SpyrecError("no graph has run on the spyrec backend yet")
    return _reports[-1]


def backend(
    module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """What torch calls for each captured graph; gives the function to run in its place.

    A graph is compiled when it first runs, and again for each new set of shapes. Parameters and
    buffers are built into the program as they are then; when one is changed, it is compiled anew.
    The last KEPT programs of a graph stay. A result that is a view of an input, or of another
    result, comes back as such.
    """
    given = dict(options or {})
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise SpyrecError(
            f"the spyrec backend has no option {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(OPTIONS)}"
        )
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in example_inputs):
        warnings.warn(
            "the spyrec backend records no gradients: what it returns cannot be trained; call the "
            "model under torch.no_grad()", stacklevel=2,
        )  # fmt: skip
    graph = _Graph(_as_user_names(module), given, _fixed(module, example_inputs))
    return torch.compiler.disable(graph)  # type: ignore[no-any-return]


def _fixed(module: Any, examples: Sequence[Any]) -> tuple[bool, ...]:
    """Which inputs of a captured graph are the model's own parameters and buffers."""
    nodes = [n for n in module.graph.nodes if n.op == "placeholder"]
    kinds = [n.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") for n in nodes]
    return tuple(
        kind is not None or isinstance(example, torch.nn.Parameter)
        for kind, example in zip(kinds, examples, strict=True)
    )


_INSIDE = re.compile(r"^[LG]\['(\w+)'\]|_(?:modules|parameters|buffers)\b")


def _as_user_names(module: Any) -> Any:
    """The captured graph with its inputs called as the user's Python calls them: L['d']['k'] is
    d_k, the weight of a layer self_layer_weight."""
    renamed = torch.fx.GraphModule(module, deepcopy(module.graph))
    taken: set[str] = set()
    for node in (n for n in renamed.graph.nodes if n.op == "placeholder"):
        argument = node.meta.get("grapharg")
        source = getattr(getattr(argument, "source", None), "name", None)
        said = source() if callable(source) else source
        name = re.sub(r"\W+", "_", _INSIDE.sub(r"\1", str(said or node.name))).strip("_")
        name = re.sub(r"__+", "_", name)
        if not name.isidentifier() or keyword.iskeyword(name) or name in (*taken, "self"):
            name = node.name
        node.target = name
        taken.add(name)
    renamed.recompile()
    return renamed


@dataclass(frozen=True)
class _View:
    """A result that lies in the memory of ``base``, an input or an earlier result. ``offset``: from
    where that begins, in elements."""

    base: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, base: torch.Tensor) -> torch.Tensor:
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)


def _views(program: Any, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, _View]:
    """Which results are views; ``inputs`` and ``outputs``: names of what the exported program takes
    and gives, outputs that are no tensors included."""
    made = {n.name: n.meta.get("val") for n in program.graph.nodes}
    homes: dict[int, tuple[str, torch.Tensor]] = {}
    for name in inputs:
        tensor = made.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            homes.setdefault(tensor.untyped_storage()._cdata, (name, tensor))
    found = {}
    for name, node in zip(outputs, program.graph_signature.user_outputs, strict=True):
        tensor = made.get(node) if isinstance(node, str) else None
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            continue
        home = homes.get(tensor.untyped_storage()._cdata)
        if home is not None:
            base, of = home
            offset = int(tensor.storage_offset()) - int(of.storage_offset())
            found[name] = _View(base, tuple(tensor.shape), tensor.stride(), offset)
        elif tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes():
            homes[tensor.untyped_storage()._cdata] = (name, tensor)
    return found


@dataclass(frozen=True)
class _Ready:
    """A program for one set of shapes. ``inputs``: names of the captured graph's inputs, in order;
    ``written``: those it writes back to; ``results``: for each value the graph returns the name of
    an output, or what it is; ``views``: outputs that are views of inputs or of other outputs."""

    program: api.Program
    inputs: tuple[str, ...]
    written: tuple[str, ...]
    results: tuple[tuple[str | None, Any], ...]
    views: Mapping[str, _View]


@dataclass(eq=False)
class _Graph:
    """A captured graph and the programs made of it so far. ``fixed``: which inputs are built into
    them."""

    module: Any
    options: Mapping[str, Any]
    fixed: tuple[bool, ...]
    ready: dict[tuple[Any, ...], _Ready] = field(default_factory=dict)

    def __call__(self, *args: Any) -> list[Any]:
        with _LOCK, torch.no_grad():
            fixed = tuple(f or _is_number(arg) for f, arg in zip(self.fixed, args, strict=True))
            numbers = tuple(float(arg) if _is_number(arg) else None for arg in args)
            args = tuple(arg.float() if _is_number(arg) else arg for arg in args)
            key = (numbers, *map(_key, args, fixed))
            ready = self.ready.pop(key, None) or self._compile(args, fixed, numbers)
            self.ready[key] = ready  # the last one used stands last
            if len(self.ready) > KEPT:
                del self.ready[next(iter(self.ready))]
            return self._run(ready, args)

    def _compile(
        self, args: Sequence[Any], built_in: Sequence[bool], numbers: Sequence[float | None]
    ) -> _Ready:
        with compile_lock:  # an export changes torch while it lasts: no other trace may see that
            program = exported(_with_numbers(self.module, numbers), args)
            graph, weights = read_exported(program)
        names = tuple(given.name for given in graph.inputs if given.kind in ("user", "constant"))
        written = written_inputs(graph)
        _refuse_shared(dict(zip(names, args, strict=True)), written)
        const = {
            name: host_array(arg)[0]
            for name, arg, fixed in zip(names, args, built_in, strict=True)
            if fixed and isinstance(arg, torch.Tensor) and name not in written
        }
        made = import_exported(graph, weights, "graph", const=const, write_back=True)
        chosen = {k: v for k, v in self.options.items() if k != "report"}
        shown = [o.value for o in graph.outputs if o.kind == "user"]
        results = tuple(
            (name, None) if isinstance(value, Ref) else (None, value)
            for name, value in zip(graph.output_names, shown, strict=True)
        )
        views = _views(program, names, graph.output_names)
        return _Ready(api.compile(made, **chosen), names, written, results, views)

    def _run(self, ready: _Ready, args: Sequence[Any]) -> list[Any]:
        named = dict(zip(ready.inputs, args, strict=True))
        fed = {port.name: host_array(named[port.name])[0] for port in ready.program.inputs}
        result = api.simulate(ready.program, fed)
        _reports[:] = [result.report()]
        if "report" in self.options:
            files.write_text(self.options["report"], json.dumps(_reports[0], indent=1) + "\n")
        dtypes = {port.name: port.dtype.name for port in ready.program.outputs}
        for name in ready.written:
            new = f"{name}.written"
            named[name].copy_(_tensor(result.outputs[new], dtypes[new]))
        for name, value in result.outputs.items():
            view = ready.views.get(name)
            if name in dtypes and not name.endswith(".written"):
                named[name] = view.of(named[view.base]) if view else _tensor(value, dtypes[name])
        return [value if name is None else named[name] for name, value in ready.results]


def _with_numbers(module: Any, numbers: Sequence[float | None]) -> Any:
    """The captured graph with each input that is a Python float written in where the graph asks
    for its value, as it does of an eps when sizes are dynamic: an export would ask at run time."""
    if all(number is None for number in numbers):
        return module
    told = torch.fx.GraphModule(module, deepcopy(module.graph))
    given = [n for n in told.graph.nodes if n.op == "placeholder"]
    for node, number in zip(given, numbers, strict=True):
        for asking in [user for user in node.users if user.target == "item"]:
            if number is not None:
                asking.replace_all_uses_with(number)
                told.graph.erase_node(asking)
    told.recompile()
    return told


def _refuse_shared(args: Mapping[str, Any], written: Sequence[str]) -> None:
    """A program has each input for itself: what is written to one does not appear in another."""
    homes: dict[int, list[str]] = {}
    for name, arg in args.items():
        if isinstance(arg, torch.Tensor) and arg.layout is torch.strided and arg.numel():
            homes.setdefault(arg.untyped_storage().data_ptr(), []).append(name)
    for names in homes.values():
        if len(names) > 1 and any(name in written for name in names):
            raise SpyrecError(
                f"the inputs {', '.join(names)} share memory and the graph writes into it, which "
                "the spyrec backend cannot follow; hand in copies"
            )


def _tensor(array: Any, dtype: str) -> torch.Tensor:
    """An output as a tensor of torch's own; 16-bit brain floats come as 32-bit ones."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(torch.bfloat16) if dtype == "bf16" else tensor


def _is_number(arg: Any) -> bool:
    """Whether it is a Python float that torch hands over as a tensor of 64 bits; it is built in."""
    return isinstance(arg, torch.Tensor) and arg.dim() == 0 and arg.dtype == torch.float64


def _key(arg: Any, fixed: bool) -> Any:
    """What a program depends on: shapes, strides and element types of inputs, the content of
    weights (their version does not tell of writes through ``.data``)."""
    if not isinstance(arg, torch.Tensor):
        return arg
    strides = arg.stride() if arg.layout is torch.strided else None
    shape = (tuple(arg.shape), str(arg.dtype), str(arg.layout), strides)
    if not fixed:
        return shape
    content = np.ascontiguousarray(host_array(arg)[0])
    return (*shape, hashlib.blake2b(content.data, digest_size=16).digest())
