"""A wrong device file is told all that is wrong with it: the key, the unit expected, the line."""

from __future__ import annotations

import re
import time
from importlib import resources
from pathlib import Path

import pytest

from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.device_file import PROBLEMS_TOLD, Section, Table, Whole
from spyrec.sim.errors import DeviceError
from spyrec.sim.toml_lines import FAULTS, STATEMENT_LINES, read_toml

FILE = (resources.files("spyrec.sim") / "devices" / "spyre.toml").read_text("utf-8")
LINES = FILE.splitlines()
SETTING = re.compile(r"^(\w+) = (\d+)")
ROWS = "a whole number from 1 to 1048576 (output rows of a pass)"
EIGHTHS = "a whole number from 1 to 1048576 (eighths of a 16-bit multiply-accumulate)"


def settings() -> list[tuple[str, int]]:
    """Dotted key and line (from 1) of each number of the shipped file, read by its letters."""
    found, section = [], ""
    for number, line in enumerate(LINES, 1):
        if line.startswith("["):
            section = line[1 : line.index("]")] + "."
        elif match := SETTING.match(line):
            found.append((section + match[1], number))
    return found


def rule_of(key: str) -> Whole:
    """What the classes say the key may hold."""
    *path, last = key.split(".")
    section = Section(DeviceSpec)
    for name in path:
        rule = section.rules[name]
        if isinstance(rule, Table):
            return rule.each
        assert isinstance(rule, Section)
        section = rule
    rule = section.rules[last]
    assert isinstance(rule, Whole)
    return rule


def line_of(key: str) -> int:
    return dict(settings())[key]


def stated(key: str) -> str:
    """The setting as it stands in the shipped file: its last name, = and its value."""
    setting = SETTING.match(LINES[line_of(key) - 1])
    assert setting is not None
    return setting[0]


def told(text: str) -> list[str]:
    with pytest.raises(DeviceError) as error:
        parse_device(text, "my.toml")
    return str(error.value).splitlines()


def changed(*pairs: tuple[str, str]) -> str:
    text = FILE
    for old, new in pairs:
        assert text.count(f"\n{old}") == 1, old
        text = text.replace(f"\n{old}", f"\n{new}")
    return text


@pytest.mark.parametrize("value", ["-1", "9223372036854775807", "1.5", '"six"', "true", "[1]"])
@pytest.mark.parametrize(("key", "line"), settings())
def test_every_parameter_names_itself_its_unit_and_its_line(
    key: str, line: int, value: str
) -> None:
    lines = list(LINES)
    lines[line - 1] = SETTING.sub(rf"\1 = {value}", lines[line - 1])
    shown = {'"six"': "'six'", "true": "True"}.get(value, value)
    assert told("\n".join(lines)) == [
        f"my.toml, line {line}: {key} is {shown}, expected {rule_of(key)}"
    ]


@pytest.mark.parametrize(("key", "line"), [s for s in settings() if s[0] != "clock_mhz"])
def test_a_missing_parameter_is_asked_for_where_its_section_begins(key: str, line: int) -> None:
    section = key.rpartition(".")[0]
    text = "\n".join(LINES[: line - 1] + LINES[line:])
    if section in ("sfp.cycles", "pt.mac_eighths"):  # whose keys are optional
        assert parse_device(text).name == "spyre"
        return
    header = next(n for n, at in enumerate(LINES, 1) if at.startswith(f"[{section}]"))
    assert told(text) == [f"my.toml, line {header}: {key} is missing, expected {rule_of(key)}"]


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ("rows = 8", "rows = 0", "pt.rows", f"pt.rows is 0, expected {ROWS}"),
        ("rows = 8", "rows = eight", "pt.rows",
         f"pt.rows is not valid TOML: Invalid value; expected {ROWS}"),
        ("rows = 8", "rows =", "pt.rows",
         f"pt.rows is not valid TOML: Invalid value; expected {ROWS}"),
        ("rows = 8", "rows = '''", "pt.rows",
         f"pt.rows is not valid TOML: Expected \"'''\"; expected {ROWS}"),
        ("rows = 8", "rows = [ 8,\n9]", "pt.rows", f"pt.rows is [8, 9], expected {ROWS}"),
        ("rows = 8", "rows = 0x" + "f" * 50, "pt.rows",
         f"pt.rows is a number of more than 38 digits, expected {ROWS}"),
        ("rows = 8", "rows = 8\nspeed = 3\n#", "pt.k_step",
         "pt.speed is not known; [pt] has macs_per_cycle, rows, k_step, "),
        ("rows = 8", "rows = 8\nrow = 3\n#", "pt.k_step",
         f"pt.row is not known; did you mean pt.rows, {ROWS}?"),
        ("rows = 8", "rows = 8\nrows = 9\n#", "pt.k_step",
         f"pt.rows is given twice, first in line {line_of('pt.rows')}; expected {ROWS}"),
        ("i4 = 1", "i2 = 1", "pt.mac_eighths.i4",
         f"pt.mac_eighths.i2 is not known; did you mean pt.mac_eighths.i32, {EIGHTHS}?"),
        ("clock_mhz = 1100", "", "name",
         "clock_mhz is missing, expected a whole number from 1 to 1048576 (MHz)"),
        ("name = \"spyre\"", "name = 3", "name",
         "name is 3, expected a string that is not empty (what the device is called)"),
        ("reserved_bytes = 65536", "reserved_bytes = 2097100", "lx.reserved_bytes",
         "lx.reserved_bytes is 2097100 of 2097152 bytes, which leaves no stick of 128 bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong(old: str, new: str, key: str, said: str) -> None:
    line = {"name": 1 if "missing" in said else 5}.get(key) or line_of(key)
    (sentence,) = told(changed((old, new)))
    assert sentence.startswith(f"my.toml, line {line}: {said}")


def test_all_that_is_wrong_is_told_at_once_in_order() -> None:
    bad = changed(("rows = 8", "rows = 0"), (stated("sfp.cycles.exp"), 'exp = "six"'),
                  ("[launch]", "[start]"), (stated("ring.hop_cycles"), "hop_cycles = two"),
                  ("[hbm]", "[hbm"))  # fmt: skip
    lines = [re.sub(r"^my.toml, line (\d+): (\S+) .*", r"\1 \2", line) for line in told(bad)]
    start = next(n for n, line in enumerate(LINES, 1) if line.startswith("[launch]"))
    header = next(n for n, line in enumerate(LINES, 1) if line.startswith("[hbm]"))
    assert lines == [
        f"{header} hbm",
        f"{line_of('ring.hop_cycles')} ring.hop_cycles",
        f"{line_of('pt.rows')} pt.rows",
        f"{line_of('sfp.cycles.exp')} sfp.cycles.exp",
        f"{start} start",
        f"{len(LINES)} launch",
    ]


def test_lines_of_every_way_to_write_a_key() -> None:
    text = (
        'a = 1\n\n# b = 2\nb.c = [\n  1,\n  "[no]",\n]\n"q q" = """\n[x]\ny = 1\n"""\r\n'
        "[d.e]\nf = {g = 1, h = {i = 2}}\n[[k]]\nl = 1\n[[k]]\nl = 2\n[d]\nm = '''x'''\n"
    )
    document = read_toml(text)
    assert document.faults == []
    assert document.lines == {
        ("a",): 1, ("b",): 4, ("b", "c"): 4, ("q q",): 8, ("d",): 12, ("d", "e"): 12,
        ("d", "e", "f"): 13, ("d", "e", "f", "g"): 13, ("d", "e", "f", "h"): 13,
        ("d", "e", "f", "h", "i"): 13, ("k",): 14, ("k", "l"): 15, ("d", "m"): 19,
    }  # fmt: skip


def test_a_section_written_in_another_way_is_the_same() -> None:
    start, end = (
        next(n for n, line in enumerate(LINES) if line.startswith(header))
        for header in ("[launch]", "[host]")
    )
    inline = f"launch = {{{stated('launch.start_cycles')}, {stated('launch.loop_max')}}}"
    made = parse_device("\n".join([inline, *LINES[:start], *LINES[end:]]))
    assert made.launch == parse_device(FILE).launch


def test_a_byte_that_is_no_utf8_is_told_by_its_line(tmp_path: Path) -> None:
    at = line_of("pt.rows")
    path = tmp_path / "my.toml"
    path.write_bytes("\n".join(LINES[: at - 1]).encode() + b"\nrows = 8  # \xb5")
    with pytest.raises(DeviceError, match=f"line {at}: is not UTF-8 text: invalid start byte"):
        load_device(str(path))


def test_hostile_files_are_refused_soon() -> None:
    """Each took a minute when every line was looked at against all others."""
    assert PROBLEMS_TOLD < FAULTS < 1000 and STATEMENT_LINES < 1000
    texts = ['a="""\n' * 100000, "]\n" * 500000, "a=[\n" * 250000, "a=1\n" * 250000,
             "".join(f"a{i}=1\n" for i in range(10000)), "x=" + "[\n" * 1000]  # fmt: skip
    before = time.monotonic()
    for text in texts:
        assert 1 <= len(told(text)) <= PROBLEMS_TOLD + 1
    assert time.monotonic() - before < 30
