"""A kernel's streams as 32-bit words and back, driven by OPCODES and UNITS.

The words are core 0's; a number that differs from core to core is a patch ``(core, word, value)``.

    kernel  = streams, then for each: unit | words << 8, then its items
    loop    = 255, trips, words of the body, the body
    instr   = op | dims << 8 | predicated << 11 | operands << 12 | waits << 16 | signals << 24
              words of the whole instruction | immediates given << 16 (a bit each, in table order)
              note | limits << 24 (a bit each)
              two words of core mask if predicated, then counts, limits, operands, immediates
              (two words each), waits, signals
    limit   = loops, start, loop strides
    operand = space | dtype << 2 | splat << 7 | rotate << 8 | guards << 9 | strides << 13 |
              loops << 16 | parameter << 19 (1 for the first, 0 for none)
              base, strides, loop strides, rotate, guards
    rotate  = loops, depth, stride, loop strides
    guard   = strides | loops << 8, origin, extent, strides, loop strides
    wait    = token | n << 16
    signal  = token | n << 16 | to cores << 31, then two words of core mask if that bit is set
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ObjectError
from .formats import FORMATS
from .isa import (
    MAX_DIMS,
    MAX_LOOPS,
    OPCODES,
    UNITS,
    Guard,
    Instr,
    Kernel,
    Limit,
    Loop,
    Num,
    Operand,
    Rotate,
    Signal,
    Space,
    Stream,
    Wait,
)
from .wellformed import Limits, check_kernel

U32 = NDArray[np.uint32]

SPACE_CODES: tuple[Space, ...] = ("hbm", "lx", "acc")
_LOOP = 255
_OP_OF_CODE = {rule.code: op for op, rule in OPCODES.items()}
_DTYPE_OF_CODE = {f.code: name for name, f in FORMATS.items()}


@dataclass(frozen=True, eq=False)
class Encoded:
    """``words``: the streams as core 0 runs them. ``patches``: (n, 3) rows of core, word index and
    value, sorted by core, then word; only what differs from core 0."""

    words: U32
    patches: U32


def canonical(kernel: Kernel) -> Kernel:
    """The same kernel in the one form a decoder gives back: a per-core number that is equal on all
    cores is a plain one, limits that are all None are left out."""
    return replace(kernel, streams={u: _canonical_stream(s) for u, s in kernel.streams.items()})


def encode_kernel(kernel: Kernel, limits: Limits) -> Encoded:
    """The streams as words and patches. ObjectError names the field that breaks a rule."""
    check_kernel(kernel, limits)
    kernel = canonical(kernel)
    out = _Writer()
    symbols = {name: i + 1 for i, name in enumerate(kernel.params)}
    out.plain(len(kernel.streams))
    for code, unit in enumerate(UNITS):
        if unit in kernel.streams:
            head = out.hole()
            _put_stream(out, kernel.streams[unit], symbols)
            size = len(out.words) - head - 1
            if size >= 1 << 24:
                raise ObjectError(
                    f"kernel @{kernel.name}: stream {unit} takes {size} words, the encoding counts "
                    f"at most {(1 << 24) - 1}; use loops"
                )
            out.words[head] = code | size << 8
    return Encoded(np.array(out.words, np.uint32), _patches(out.varied))


def decode_kernel(encoded: Encoded, shell: Kernel, limits: Limits) -> Kernel:
    """``shell`` (name, params, programs, notes, cores) with the streams the words spell.

    ObjectError: a length, code, patch or number that no encoder writes, or a broken machine rule.
    """
    if not 1 <= shell.cores <= limits.cores:
        raise ObjectError(
            f"kernel @{shell.name}: cores is {shell.cores}; this device runs 1..{limits.cores}"
        )
    source = _Reader(
        shell.name, encoded.words.tolist(), _by_word(encoded, shell), len(encoded.words)
    )
    streams: dict[str, Stream] = {}
    for _ in range(source.plain("stream count", len(UNITS))):
        head = source.plain("stream head", 2**32 - 1)
        code = head & 255
        if code >= len(UNITS) or UNITS[code] in streams:
            raise source.error(f"unit {code} is unknown or has two streams")
        part = source.part(head >> 8, "stream")
        streams[UNITS[code]] = _get_stream(part, shell, 0)
    source.finish("kernel")
    kernel = replace(shell, streams=streams)
    check_kernel(kernel, limits)
    return kernel


def _canonical_stream(stream: Stream) -> Stream:
    return tuple(
        replace(item, body=_canonical_stream(item.body))
        if isinstance(item, Loop)
        else _canonical_instr(item)
        for item in stream
    )


def _canonical_instr(instr: Instr) -> Instr:
    some_limit = any(limit is not None for limit in instr.limits)
    return replace(
        instr,
        counts=tuple(_same(c) for c in instr.counts),
        limits=tuple(lim and replace(lim, start=_same(lim.start)) for lim in instr.limits)
        if some_limit
        else (),
        operands=tuple(
            replace(
                operand,
                base=_same(operand.base),
                guards=tuple(
                    replace(g, origin=_same(g.origin), extent=_same(g.extent))
                    for g in operand.guards
                ),
            )
            for operand in instr.operands
        ),
        imm={name: _same(value) for name, value in instr.imm.items()},
        signals=tuple(
            replace(s, token=_same(s.token), cores=_same(s.cores)) for s in instr.signals
        ),
    )


def _same(value: Num) -> Num:
    if isinstance(value, tuple):
        return int(value[0]) if all(v == value[0] for v in value) else tuple(int(v) for v in value)
    return int(value)


@dataclass
class _Writer:
    """Words so far, and which of them are not the same on all cores."""

    words: list[int] = field(default_factory=list)
    varied: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def plain(self, *values: int) -> None:
        self.words += [int(v) & 0xFFFFFFFF for v in values]

    def num(self, value: Num) -> None:
        if isinstance(value, tuple):
            self.varied.append((len(self.words), value))
            value = value[0]
        self.plain(value)

    def wide(self, value: Num) -> None:
        """64 bits as two words, the low one first."""
        if isinstance(value, tuple):
            self.num(value)
            self.num(tuple(v >> 32 for v in value))
        else:
            self.plain(value, value >> 32)

    def hole(self) -> int:
        self.words.append(0)
        return len(self.words) - 1


def _patches(varied: list[tuple[int, tuple[int, ...]]]) -> U32:
    if not varied:
        return np.empty((0, 3), np.uint32)
    where = np.array([index for index, _ in varied], np.uint32)
    values = (np.array([v for _, v in varied], np.int64) & 0xFFFFFFFF).astype(np.uint32).T
    core, slot = np.nonzero(values != values[0])
    return np.stack([core.astype(np.uint32), where[slot], values[core, slot]], axis=1)


def _put_stream(out: _Writer, stream: Stream, symbols: Mapping[str, int]) -> None:
    for item in stream:
        if isinstance(item, Instr):
            _put_instr(out, item, symbols)
            continue
        out.plain(_LOOP, item.count)
        head = out.hole()
        _put_stream(out, item.body, symbols)
        out.words[head] = len(out.words) - head - 1


def _put_instr(out: _Writer, instr: Instr, symbols: Mapping[str, int]) -> None:
    rule = OPCODES[instr.op]
    out.plain(
        rule.code
        | len(instr.counts) << 8
        | (instr.where != 0) << 11
        | len(instr.operands) << 12
        | len(instr.waits) << 16
        | len(instr.signals) << 24
    )
    head = out.hole()
    out.plain(instr.note | _bits(limit is not None for limit in instr.limits) << 24)
    if instr.where != 0:
        out.wide(instr.where)
    for count in instr.counts:
        out.num(count)
    for limit in instr.limits:
        if limit is not None:
            out.plain(len(limit.loops))
            out.num(limit.start)
            out.plain(*limit.loops)
    for operand in instr.operands:
        _put_operand(out, operand, symbols)
    for name in rule.imms:
        if name in instr.imm:
            out.wide(instr.imm[name])
    for wait in instr.waits:
        out.plain(wait.token | wait.n << 16)
    for signal in instr.signals:
        rest = signal.n << 16 | (signal.cores != 0) << 31
        tokens = signal.token
        out.num(tuple(t | rest for t in tokens) if isinstance(tokens, tuple) else tokens | rest)
        if signal.cores != 0:
            out.wide(signal.cores)
    size = len(out.words) - head + 1
    out.words[head] = size | _bits(name in instr.imm for name in rule.imms) << 16


def _put_operand(out: _Writer, operand: Operand, symbols: Mapping[str, int]) -> None:
    out.plain(
        SPACE_CODES.index(operand.space)
        | FORMATS[operand.dtype].code << 2
        | operand.splat << 7
        | (operand.rotate is not None) << 8
        | len(operand.guards) << 9
        | len(operand.strides) << 13
        | len(operand.loops) << 16
        | symbols.get(operand.symbol, 0) << 19
    )
    out.num(operand.base)
    out.plain(*operand.strides, *operand.loops)
    if operand.rotate is not None:
        rotate = operand.rotate
        out.plain(len(rotate.loops), rotate.depth, rotate.stride, *rotate.loops)
    for guard in operand.guards:
        out.plain(len(guard.strides) | len(guard.loops) << 8)
        out.num(guard.origin)
        out.num(guard.extent)
        out.plain(*guard.strides, *guard.loops)


def _bits(flags: Any) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _by_word(encoded: Encoded, shell: Kernel) -> dict[int, tuple[int, ...]]:
    """Patched word index -> its value on each core."""
    words, patches = encoded.words, encoded.patches
    if not len(patches):
        return {}
    core, index, value = (patches[:, i].astype(np.int64) for i in range(3))
    where = f"kernel @{shell.name}: a patch"
    if core.min() < 1 or core.max() >= shell.cores:
        raise ObjectError(f"{where} is for a core outside 1..{shell.cores - 1}")
    if index.max() >= len(words):
        raise ObjectError(f"{where} is for word {index.max()} of {len(words)}")
    if (np.diff(core * len(words) + index) <= 0).any():
        raise ObjectError(f"{where} is out of order; patches are sorted by core, then word")
    if (words[index] == value).any():
        raise ObjectError(f"{where} writes what core 0 has there already")
    slots, slot = np.unique(index, return_inverse=True)
    values = np.repeat(words[slots][:, None], shell.cores, axis=1)
    values[slot, core] = value
    return dict(zip(slots.tolist(), map(tuple, values.tolist()), strict=True))


@dataclass
class _Reader:
    """A window of the words. Numbers may be patched, all else must be the same on all cores."""

    kernel: str
    words: list[int]
    varied: Mapping[int, tuple[int, ...]]
    end: int
    at: int = 0

    def error(self, problem: str) -> ObjectError:
        return ObjectError(f"kernel @{self.kernel}, word {self.at}: {problem}; the text is damaged")

    def plain(self, what: str, most: int = 2**32 - 1) -> int:
        """A word that is the same on all cores and at most ``most``."""
        if self.at >= self.end:
            raise self.error(f"{what} lies past the end")
        if self.at in self.varied:
            raise self.error(f"{what} is patched, but must be the same on all cores")
        value = self.words[self.at]
        if value > most:
            raise self.error(f"{what} is {value}, at most {most} is possible")
        self.at += 1
        return value

    def signed(self, what: str, n: int) -> tuple[int, ...]:
        """``n`` signed words that are the same on all cores."""
        return tuple(_signed(self.plain(what)) for _ in range(n))

    def raw(self, what: str) -> Num:
        if self.at >= self.end:
            raise self.error(f"{what} lies past the end")
        value = self.varied.get(self.at, self.words[self.at])
        self.at += 1
        return value

    def num(self, what: str) -> Num:
        """A signed word, possibly different on each core."""
        value = self.raw(what)
        return tuple(map(_signed, value)) if isinstance(value, tuple) else _signed(value)

    def wide(self, what: str) -> Num:
        """A signed 64-bit number in two words."""
        low, high = self.raw(what), self.num(what)
        if not isinstance(low, tuple) and not isinstance(high, tuple):
            return low | high << 32
        n = len(low) if isinstance(low, tuple) else len(high) if isinstance(high, tuple) else 0
        lows = low if isinstance(low, tuple) else (low,) * n
        highs = high if isinstance(high, tuple) else (high,) * n
        return tuple(a | b << 32 for a, b in zip(lows, highs, strict=True))

    def part(self, size: int, what: str) -> _Reader:
        """The next ``size`` words as a window of their own; this one moves past them."""
        if size > self.end - self.at:
            raise self.error(f"a {what} of {size} words runs past the end")
        start, self.at = self.at, self.at + size
        return _Reader(self.kernel, self.words, self.varied, self.at, start)

    def finish(self, what: str) -> None:
        if self.at != self.end:
            raise self.error(f"{self.end - self.at} words are left over in a {what}")


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _get_stream(source: _Reader, shell: Kernel, depth: int) -> Stream:
    items: list[Instr | Loop] = []
    while source.at < source.end:
        head = source.plain("an instruction")
        if head != _LOOP:
            items.append(_get_instr(source, head, shell))
            continue
        if depth == MAX_LOOPS:
            raise source.error(f"loops nest deeper than {MAX_LOOPS}")
        count = source.plain("loop trips")
        body = source.part(source.plain("loop length"), "loop body")
        items.append(Loop(count, _get_stream(body, shell, depth + 1)))
    return tuple(items)


def _get_instr(outer: _Reader, head: int, shell: Kernel) -> Instr:
    op = _OP_OF_CODE.get(head & 255)
    if op is None:
        raise outer.error(f"no opcode has the code {head & 255}")
    rule = OPCODES[op]
    sizes = outer.plain("instruction length")
    source = outer.part((sizes & 0xFFFF) - 2, "instruction") if sizes & 0xFFFF > 2 else None
    if source is None or sizes >> 16 >> len(rule.imms):
        raise outer.error(f"length and immediates {sizes:#x} of {op} are impossible")
    noted = source.plain("note")
    dims = head >> 8 & 7
    if dims > MAX_DIMS or noted >> 24 >> dims:
        raise source.error(f"{dims} dimensions with limits {noted >> 24:#x} are impossible")
    where = source.plain("predicate") | source.plain("predicate") << 32 if head >> 11 & 1 else 0
    if head >> 11 & 1 and not where:
        raise source.error("a predicate names no core")
    counts = tuple(source.num("count") for _ in range(dims))
    limits = tuple(_get_limit(source) if noted >> 24 >> i & 1 else None for i in range(dims))
    operands = tuple(_get_operand(source, shell) for _ in range(head >> 12 & 15))
    given = (name for i, name in enumerate(rule.imms) if sizes >> 16 >> i & 1)
    imm = {name: source.wide(name) for name in given}
    waits = tuple(_get_wait(source) for _ in range(head >> 16 & 255))
    signals = tuple(_get_signal(source) for _ in range(head >> 24))
    source.finish(op)
    return Instr(
        op=op,
        counts=counts,
        limits=limits if noted >> 24 else (),
        operands=operands,
        imm=imm,
        waits=waits,
        signals=signals,
        note=noted & 0xFFFFFF,
        where=where,
    )


def _get_limit(source: _Reader) -> Limit:
    loops = source.plain("loops of a limit", MAX_LOOPS)
    return Limit(source.num("limit"), source.signed("loop stride", loops))


def _get_operand(source: _Reader, shell: Kernel) -> Operand:
    head = source.plain("operand")
    space, dtype, symbol = head & 3, head >> 2 & 31, head >> 19
    if space >= len(SPACE_CODES) or dtype not in _DTYPE_OF_CODE or symbol > len(shell.params):
        raise source.error(
            f"operand head {head:#x} names a space, format or parameter there is not"
        )
    base = source.num("base")
    strides = source.signed("stride", head >> 13 & 7)
    loops = source.signed("loop stride", head >> 16 & 7)
    return Operand(
        space=SPACE_CODES[space],
        base=base,
        strides=strides,
        dtype=_DTYPE_OF_CODE[dtype],
        symbol=shell.params[symbol - 1] if symbol else "",
        loops=loops,
        rotate=_get_rotate(source) if head >> 8 & 1 else None,
        guards=tuple(_get_guard(source) for _ in range(head >> 9 & 15)),
        splat=bool(head >> 7 & 1),
    )


def _get_rotate(source: _Reader) -> Rotate:
    loops = source.plain("loops of a rotation", MAX_LOOPS)
    depth, stride = source.signed("rotation", 2)
    return Rotate(source.signed("loop stride", loops), depth, stride)


def _get_guard(source: _Reader) -> Guard:
    sizes = source.plain("guard sizes", 0xFFFF)
    strides, loops = sizes & 255, sizes >> 8
    if strides > MAX_DIMS or loops > MAX_LOOPS:
        raise source.error(f"a guard of {strides} strides and {loops} loops is impossible")
    return Guard(
        origin=source.num("guard origin"),
        extent=source.num("guard extent"),
        strides=source.signed("stride", strides),
        loops=source.signed("loop stride", loops),
    )


def _get_wait(source: _Reader) -> Wait:
    word = source.plain("wait", 2**31 - 1)
    return Wait(word & 0xFFFF, word >> 16)


def _get_signal(source: _Reader) -> Signal:
    found = source.raw("signal")
    words = found if isinstance(found, tuple) else (found,)
    rest = words[0] >> 16
    if any(word >> 16 != rest for word in words):
        raise source.error("the count of a signal is patched, but must be the same on all cores")
    cores = source.wide("signal cores") if rest >> 15 else 0
    if rest >> 15 and cores == 0:
        raise source.error("a signal to named cores names none")
    tokens = tuple(word & 0xFFFF for word in words)
    return Signal(tokens if isinstance(found, tuple) else tokens[0], rest & 0x7FFF, cores)
