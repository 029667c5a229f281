"""Claims: what the compiler means each instruction to do, in files, listings and the checker."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_end_to_end as end_to_end
from small_models import Graph, module, run_binary

from spyrec.driver import compile_module
from spyrec.ir.core import Value
from spyrec.ir.types import dtype
from spyrec.passes.manager import Target
from spyrec.sim.check import find_hazards
from spyrec.sim.claim_file import (
    AGAIN,
    INT,
    TUPLE,
    _Writer,
    pack_claims,
    with_claims,
    without_claims,
)
from spyrec.sim.device import load_device
from spyrec.sim.errors import AsmError, ObjectError
from spyrec.sim.isa import Affine, Claim, Extent, Instr, Intent, Loop, Program, Stream, instructions
from spyrec.sim.listing import assemble, disassemble
from spyrec.sim.objfile import dump, loads
from spyrec.sim.run import run
from spyrec.sim.wellformed import Limits, check_program

DEVICE = load_device()
NAMES = ("softmax", "conv", "embedding", "odd_heads", "long_inner_dimension")


def program(name: str) -> Program:
    return compile_module(getattr(end_to_end, name)(), Target(DEVICE)).program


def every(code: Program) -> list[Instr]:
    return [i for k in code.kernels for s in k.streams.values() for i, _ in instructions(s)]


def changed(code: Program, change: Callable[[Instr], Instr]) -> Program:
    def walk(stream: Stream) -> Stream:
        return tuple(
            replace(item, body=walk(item.body)) if isinstance(item, Loop) else change(item)
            for item in stream
        )

    kernels = (
        replace(k, streams={unit: walk(s) for unit, s in k.streams.items()}) for k in code.kernels
    )
    return replace(code, kernels=tuple(kernels))


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_that_moves_something_says_what(name: str) -> None:
    code = program(name)
    for instr in every(code):
        assert bool(instr.operands) == bool(instr.intents)
        assert all(len(intent.claims) == len(instr.operands) for intent in instr.intents)


@pytest.mark.parametrize("name", NAMES)
def test_files_and_listings_keep_claims(name: str) -> None:
    code = program(name)
    read = loads(dump(code))
    assert read.tensors == code.tensors
    assert [i.intents for i in every(read)] == [i.intents for i in every(code)]
    assert [k.tiles for k in read.kernels] == [k.tiles for k in code.kernels]
    assert [x.tensors for x in read.launches] == [x.tensors for x in code.launches]
    assert dump(read) == dump(code)
    assert dump(assemble(disassemble(code))) == dump(code)
    assert find_hazards(read, DEVICE) == ()


def test_without_claims_a_program_is_the_same_program() -> None:
    code = program("softmax")
    bare = without_claims(code)
    assert not any(i.intents for i in every(bare)) and pack_claims(bare) == b""
    assert loads(dump(bare)).tensors == ()
    assert with_claims(bare, pack_claims(code)) == code
    cycles = {run(p, DEVICE, timing_only=True).total_cycles for p in (code, bare)}
    assert len(cycles) == 1 and find_hazards(bare, DEVICE) == ()
    text = disassemble(code)
    assert dump(assemble(text[: text.index("\nclaims\n")])) == dump(bare)


def test_an_address_that_is_legal_otherwise_is_told_by_what_it_holds() -> None:
    """The row sums of softmax read the row beside: written, in order, of the same value."""
    code = program("softmax")
    done: list[int] = []

    def astray(instr: Instr) -> Instr:
        if done or instr.op != "vec" or not instr.imm.get("reduce"):
            return instr
        done.append(1)
        to, source, *rest = instr.operands
        assert isinstance(source.base, int)
        return replace(instr, operands=(to, replace(source, base=source.base + 1), *rest))

    wrong = changed(code, astray)
    kinds = {finding.kind for finding in find_hazards(wrong, DEVICE)}
    texts = [str(finding) for finding in find_hazards(wrong, DEVICE)]
    assert "astray" in kinds
    assert any("which holds stick 1 of %x in place of stick 0 of %x" in text for text in texts)


def test_parts_of_a_value_that_nothing_reads_are_no_finding() -> None:
    """All of x is written over: of both tensors side by side only some rows are read."""
    def replaced(g: Graph, x: Value, new: Value) -> list[Value]:
        rows = g.constant(np.array([[1], [0], [2]]), dtype("i64"))
        return [g("scatter_nd", x, rows, new)]

    shape = (3, 65, 3)
    run_binary(module(replaced, ("x", shape, "f32"), ("new", shape, "f32")))


def test_claims_of_another_program_are_refused() -> None:
    one, other = program("softmax"), program("conv")
    with pytest.raises(ObjectError, match="claims: "):
        with_claims(without_claims(one), pack_claims(other))
    text = disassemble(one)
    block = disassemble(other)[disassemble(other).index("\nclaims\n") :]
    with pytest.raises(AsmError, match="claims: "):
        assemble(text[: text.index("\nclaims\n")] + block)


def test_damaged_claims_are_refused() -> None:
    code = program("odd_heads")
    bare, data = without_claims(code), pack_claims(code)
    for at in range(0, len(data), max(1, len(data) // 200)):
        for byte in (data[at] ^ 1, data[at] ^ 0x80, 255):
            blob = data[:at] + bytes([byte]) + data[at + 1 :]
            try:
                check_program(with_claims(bare, blob), Limits())
            except ObjectError as error:
                assert "claims" in str(error) or "tensor" in str(error) or "launch" in str(error)
    for size in range(1, len(data), max(1, len(data) // 100)):
        with pytest.raises(ObjectError):
            with_claims(bare, data[:size])


def _packed(*heads: tuple[int, int]) -> bytes:
    """Claims written number by number: (kind, value) each."""
    out = _Writer()
    for kind, value in heads:
        out._head(kind, value)
    return bytes(out.out)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        # Each tuple is the one before, twice: 2 ** 30 numbers in 96 bytes.
        (((TUPLE, 1), (INT, 0), *(((TUPLE, 2), (AGAIN, i), (AGAIN, i)) for i in range(29))),
         "stands too deep"),
        # Each tuple is the one before: as deep as the file is long.
        (((TUPLE, 1), (INT, 0), *(((TUPLE, 1), (AGAIN, i)) for i in range(999))),
         "stands too deep"),
        # 999 times one tuple of 999 times one tuple of 999 numbers.
        (((TUPLE, 999), *((INT, 0),) * 999, *(((TUPLE, 999), *((AGAIN, i),) * 999)
          for i in range(2))), "there are more than 67108864 numbers and texts"),
    ],
    ids=["doubled", "nested", "wide"],
)  # fmt: skip
def test_small_claims_that_say_endlessly_much(tensors: Any, said: str) -> None:
    """A file of two kilobytes kept the reader busy for ever: what stands again was not counted."""
    heads: list[tuple[int, int]] = []
    for item in tensors:
        heads += [item] if isinstance(item[0], int) else item
    blob = _packed((TUPLE, 3), (TUPLE, sum(kind == TUPLE for kind, _ in heads)), *heads)
    with pytest.raises(ObjectError, match=said):
        with_claims(without_claims(program("matmul_of_two_inputs")), blob)


def test_claims_beyond_all_sticks_are_findings() -> None:
    """They were an IndexError where the finding names what is there."""
    far = Affine(0, (2**39,) * 3, ())
    code = changed(program("softmax"), lambda i: replace(i, intents=tuple(
        replace(intent, claims=tuple(replace(c, at=(far,) * len(c.at)) for c in intent.claims))
        for intent in i.intents)))  # fmt: skip
    assert find_hazards(code, DEVICE)
    turned = changed(program("softmax"), lambda i: replace(i, intents=tuple(
        claim(intent, made=Affine(-(2**39))) for intent in i.intents)))  # fmt: skip
    assert any(f.kind == "astray" for f in find_hazards(turned, DEVICE))


def first_intent(code: Program, change: Callable[[Intent], Intent]) -> Program:
    done: list[int] = []

    def once(instr: Instr) -> Instr:
        if done or not instr.intents:
            return instr
        done.append(1)
        return replace(instr, intents=(change(instr.intents[0]), *instr.intents[1:]))

    return changed(code, once)


def claim(intent: Intent, **fields: Any) -> Intent:
    first: Claim = intent.claims[0]
    return replace(intent, claims=(replace(first, **fields), *intent.claims[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: replace(i, claims=()), "0 claims for 2 operands; give one each"),
        (lambda i: claim(i, tensor=99), "speak of number 99"),
        (lambda i: claim(i, tensor=-99), "there is no tile 99"),
        (lambda i: claim(i, at=()), "0 coordinates"),
        (lambda i: claim(i, at=(Affine(),) * 5), "rank|dimensions"),
        (lambda i: claim(i, turn=Affine((1, 2))), "2 numbers for 30 cores"),
        (lambda i: claim(i, made=Affine(0, (), (1,) * 9)), "9 steps where there are at most"),
        (lambda i: claim(i, made=Affine(1 << 50)), "a number is beyond"),
        (lambda i: replace(i, extents=(Extent(1, 0, 1),)), "in steps of 0"),
        (lambda i: replace(i, where=-1), "where is -1"),
    ],
)
def test_claims_that_cannot_be_are_named(
    change: Callable[[Intent], Intent], message: str
) -> None:
    code = first_intent(program("matmul_of_two_inputs"), change)
    with pytest.raises(ObjectError, match=message):
        check_program(code, Limits())


def _off(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a number of addresses that is one too high."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        made = f(*args, **kwargs)
        if isinstance(made, tuple):
            return tuple(n + 1 for n in made)
        return made + 1

    return wrong


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("spyrec.backend.transfers.base", "softmax"),
        ("spyrec.backend.transfers.loop_strides", "conv"),
        ("spyrec.backend.places.kernel_strides", "softmax"),
        ("spyrec.backend.places.base", "mlp"),
        ("spyrec.backend.regions.Region.at", "transpose"),
        ("spyrec.backend.regions.strides_along", "transpose"),
        ("spyrec.backend.shuffle.Side.base", "odd_heads"),
        ("spyrec.backend.emit_gather.GatherEmitter._index_stick", "embedding"),
    ],
)
def test_a_fault_in_address_generation_is_found(
    place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims come from elsewhere: what one part of the compiler gets wrong the other one tells."""
    owner, _, function = place.rpartition(".")
    holder: Any = pkgutil.resolve_name(owner)
    monkeypatch.setattr(holder, function, _off(getattr(holder, function)))
    assert "astray" in {finding.kind for finding in find_hazards(program(name), DEVICE)}


def test_claims_are_small() -> None:
    """Equal numbers are written once: less than the code they speak of."""
    code = program("attention")
    assert len(pack_claims(code)) * 2 < len(dump(without_claims(code)))
