"""``spyrec disasm`` and ``spyrec asm``: object file to listing and back."""

from __future__ import annotations

from pathlib import Path

import click

from spyrec.cli_path import NEW_FILE, Writing, write_out


@click.command("disasm", cls=Writing, short_help="A program becomes an assembler listing.")
@click.argument("program", type=click.Path(dir_okay=False))
@click.option("--kernel", metavar="NAME",
              help="Print this kernel alone; that cannot be assembled.")
@click.option("--no-weights", is_flag=True,
              help="Leave out the bytes of constants; the listing cannot be assembled then.")
@click.option("-o", "--output", type=NEW_FILE, help="File to write. Default: stdout.")
def disasm_command(
    program: str, kernel: str | None, no_weights: bool, output: str | None
) -> None:
    """Print PROGRAM.spx as an assembler listing, which `spyrec asm` reads back.

    \b
    spyrec disasm model.spx --kernel k3_matmul_add
    """
    from spyrec.ir.errors import SpyrecError
    from spyrec.sim.listing import disassemble, kernel_listing
    from spyrec.sim.objfile import load_program

    loaded = load_program(program)
    found = [k for k in loaded.kernels if k.name == kernel]
    if kernel is not None and not found:
        names = ", ".join(k.name for k in loaded.kernels) or "none"
        raise SpyrecError(f"{program} has no kernel {kernel}; its kernels are: {names}")
    if kernel is None:
        write_out(disassemble(loaded, data=not no_weights), output)
    else:
        write_out("\n".join(map(kernel_listing, found)), output)


@click.command("asm", cls=Writing, short_help="A listing becomes a program.")
@click.argument("listing", type=click.Path(dir_okay=False))
@click.option("-o", "--output", required=True, type=NEW_FILE, help="The object file to write.")
def asm_command(listing: str, output: str) -> None:
    """Assemble LISTING into an object file.

    \b
    spyrec disasm model.spx -o model.lst
    spyrec asm model.lst -o model.spx
    """
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
