"""``spyrec devices``, ``passes`` and ``ops``: what there is to choose from, one a line."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command("devices", short_help="List the machines there are.")
@click.argument("files", metavar="[FILE.toml]...", nargs=-1, type=click.Path(dir_okay=False))
def devices_command(files: Sequence[str]) -> None:
    """List the machines that ship with spyrec, or check and list FILEs, machines of your own.

    \b
    spyrec devices
    spyrec devices my.toml
    """
    from spyrec.sim.device import builtin_devices, load_device

    for name in files or builtin_devices():
        d = load_device(name)
        peak = d.hbm.bytes_per_cycle * d.clock_mhz / 1000
        click.echo(
            f"{name}: {d.cores.count} cores at {d.clock_mhz} MHz, "
            f"{d.pt.macs_per_cycle} 16-bit MAC a cycle and core, "
            f"{d.lx.bytes / 2**20:g} MiB scratchpad a core, {d.hbm.bytes / 2**30:g} GiB memory "
            f"at {peak:g} GB/s"
        )


@click.command("passes", short_help="List the passes, or tell all about some.")
@click.argument("names", metavar="[PASS]...", nargs=-1)
@click.option("--load", "loaded", multiple=True, type=click.Path(dir_okay=False),
              metavar="FILE.py", help="Passes of your own, too.")
def passes_command(names: Sequence[str], loaded: Sequence[str]) -> None:
    """List the passes with their options and defaults, then the pipeline of each planner; or tell
    of each PASS what it does, its options, its places, and an example of IR before and after.

    \b
    spyrec passes
    spyrec passes fuse tiling
    """
    from spyrec.ir.errors import PassError
    from spyrec.ir.near import EVERY_PASS, listed
    from spyrec.passes.manager import Absent
    from spyrec.passes.pipeline import BASELINE, PIPELINE
    from spyrec.passes.pipeline_text import print_pipeline
    from spyrec.reference import pass_options, pass_reference
    from spyrec.workbench.plugins import known_passes

    known = known_passes(loaded)
    if names:
        for name in names:
            if name not in known:
                told = listed(name, sorted(known), EVERY_PASS)
                raise PassError(f"no pass is called {name!r}; {told}")
            if isinstance(absent := known[name], Absent):
                absent()
        click.echo("\n".join(pass_reference(n, known[n]) for n in names), nl=False)
        return
    for name, make in sorted(known.items()):
        options = ", ".join(pass_options(make))
        click.echo(f"{name}{{{options}}}" if options else name)
        click.echo(f"    {getattr(make, 'summary', '')}")
    click.echo(f"\nusual pipeline: {print_pipeline(PIPELINE)}")
    click.echo(f"\n--planner baseline: {print_pipeline(BASELINE)}")


@click.command("ops", short_help="List the ops of the IR, of ONNX or of PyTorch.")
@click.option("--onnx", is_flag=True, help="List the ONNX operators that can be imported instead.")
@click.option("--torch", is_flag=True, help="List the PyTorch operators that can be imported.")
def ops_command(onnx: bool, torch: bool) -> None:
    """List the ops of the IR, by family: operands; attributes -> results, and what each does.

    \b
    spyrec ops
    spyrec ops --onnx
    """
    from spyrec.reference import onnx_reference, op_reference, torch_reference

    if torch:
        click.echo(torch_reference(), nl=False)
    else:
        click.echo(onnx_reference() if onnx else op_reference(), nl=False)
