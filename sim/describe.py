"""How errors, traces and deadlock reports name an instruction: what it is, where it runs, which
op of the model it came from."""

from __future__ import annotations

from .isa import Instr, Kernel, Num, Operand


def text(instr: Instr, core: int = 0) -> str:
    """One line: opcode, effective-at-most counts, operands as seen by ``core``."""
    counts = "x".join(str(_at(count, core)) for count in instr.counts)
    operands = ", ".join(_operand(operand, core) for operand in instr.operands)
    return " ".join(part for part in (instr.op, counts, operands) if part)


def origin(instr: Instr, kernel: Kernel) -> str:
    """``%op (from node, node)`` of the provenance list, "" when there is none."""
    if not 0 <= instr.note < len(kernel.notes):
        return ""
    note = kernel.notes[instr.note]
    return f"{note.op} (from {', '.join(note.nodes)})" if note.nodes else note.op


def place(
    kernel: Kernel, unit: str, instr: Instr, *, launch: int | None = None, core: int | None = None
) -> str:
    """The instruction with everything known about where it stands."""
    parts = [] if launch is None else [f"launch {launch}"]
    parts.append(f"kernel {kernel.name}")
    parts += [] if core is None else [f"core {core}"]
    parts.append(f"unit {unit}")
    source = origin(instr, kernel)
    return f"{', '.join(parts)}, `{text(instr, core or 0)}`" + (f" of {source}" if source else "")


def _operand(operand: Operand, core: int) -> str:
    symbol = f"{operand.symbol}+" if operand.symbol else ""
    return f"{operand.space}[{symbol}{_at(operand.base, core)}]"


def _at(value: Num, core: int) -> int:
    if isinstance(value, int):
        return value
    return value[core] if core < len(value) else value[0]
