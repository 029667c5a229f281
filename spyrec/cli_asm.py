"""``spyrec disasm`` and ``spyrec asm``: object file to listing and back."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("disasm")
@click.argument("program", type=click.Path(dir_okay=False))
def disasm_command(program: str) -> None:
    """Print PROGRAM.spx as an assembler listing, which `spyrec asm` reads back."""
    from spyrec.sim.listing import disassemble
    from spyrec.sim.objfile import load_program

    click.echo(disassemble(load_program(program)), nl=False)


@click.command("asm")
@click.argument("listing", type=click.Path(dir_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False),
              help="The object file to write.")
def asm_command(listing: str, output: str) -> None:
    """Assemble LISTING into an object file."""
    from spyrec.files import write_bytes
    from spyrec.ir.errors import ParseError
    from spyrec.sim.assembler import assemble
    from spyrec.sim.errors import AsmError
    from spyrec.sim.objfile import dump

    try:
        program = assemble(Path(listing).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ParseError(f"{listing} is not UTF-8 text: {error}") from None
    except AsmError as error:
        raise ParseError(f"{listing}: {error}") from None
    write_bytes(output, dump(program))
