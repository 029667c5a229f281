"""``spyrec devices``, ``passes`` and ``ops``: what there is to choose from, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spyrec.ir.ops import OpDef, Operand


@click.command("devices")
def devices_command() -> None:
    """List the machines that ship with spyrec; a TOML file of your own works everywhere too."""
    from spyrec.sim.device import builtin_devices, load_device

    for name in builtin_devices():
        d = load_device(name)
        peak = d.hbm.bytes_per_cycle * d.clock_mhz / 1000
        click.echo(
            f"{name}: {d.cores.count} cores at {d.clock_mhz} MHz, "
            f"{d.pt.macs_per_cycle} 16-bit MAC a cycle and core, "
            f"{d.lx.bytes / 2**20:g} MiB scratchpad a core, {d.hbm.bytes / 2**30:g} GiB memory "
            f"at {peak:g} GB/s"
        )


@click.command("passes")
def passes_command() -> None:
    """List the passes with their options and defaults, then the usual pipeline."""
    from dataclasses import fields, is_dataclass

    from spyrec.passes.pipeline import PIPELINE, registry
    from spyrec.passes.pipeline_text import print_pipeline

    for name, make in sorted(registry().items()):
        options = ", ".join(
            f"{f.name.replace('_', '-')}={f.default}" for f in fields(make)
        ) if is_dataclass(make) else ""
        click.echo(f"{name}{{{options}}}" if options else name)
        click.echo(f"    {getattr(make, 'summary', '')}")
    click.echo(f"\nusual pipeline: {print_pipeline(PIPELINE)}")


@click.command("ops")
def ops_command() -> None:
    """List the ops of the IR, by family: operands; attributes -> results, and what each does."""
    from spyrec.ir.ops import OPS

    family = ""
    for op in sorted(OPS.values(), key=lambda o: o.family):  # stable: the table's order within
        if op.family != family:
            click.echo(f"{'' if not family else chr(10)}{op.family}")
            family = op.family
        click.echo(f"  {signature(op)}")
        click.echo(f"      {op.summary}")


def signature(op: OpDef) -> str:
    """``matmul(a, b) -> result``; optional operands end in ?, repeated ones in *."""
    from spyrec.ir.ops import REQUIRED

    attrs = [
        f"{name}: {'|'.join(spec.choices) or spec.kind}"
        + ("" if spec.default is REQUIRED else f" = {spec.default}")
        for name, spec in op.attrs.items()
    ]
    inside = ", ".join(_operand(o) for o in op.operands)
    if attrs:
        inside += ("; " if inside else "") + ", ".join(attrs)
    return f"{op.name}({inside}) -> {', '.join(op.results)}"


def _operand(operand: Operand) -> str:
    return operand.name + {"one": "", "optional": "?", "variadic": "*"}[operand.how]
