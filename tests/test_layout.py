"""Guards of the folder-to-package mapping and of who may import whom."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import spyrec

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"spyrec": "spyrec", "spyrec.ir": "ir", "spyrec.passes": "passes", "spyrec.sim": "sim"}
LINKS = ("ir", "passes", "sim")

# Who may import whom: package -> modules of ours it may name, besides itself.
MAY_IMPORT = {
    "spyrec.ir": (),
    "spyrec.sim": (),
    "spyrec.passes": ("spyrec.ir", "spyrec.sim.device"),
}


def setuptools_table() -> dict[str, object]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert isinstance(table, dict)
    return table


def files_below(folder: Path) -> list[Path]:
    """Files below a real folder; the links inside spyrec/ are not followed."""
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not (Path(here) / f).is_symlink()]
        found += [Path(here) / f for f in files]
    return sorted(found)


def sources(folder: Path) -> list[Path]:
    return [file for file in files_below(folder) if file.suffix == ".py"]


def module_name(package: str, folder: Path, file: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join((package, *parts)).removesuffix(".__init__")


def modules_on_disk() -> dict[str, Path]:
    return {
        module_name(package, ROOT / folder, file): file
        for package, folder in FOLDERS.items()
        for file in sources(ROOT / folder)
    }


def imported_names(package: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a module imports, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package if node.level else ""
            stem = ".".join(part for part in (base, node.module or "") if part)
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def upward(package: str, source: str) -> list[str]:
    """Imports of ours that ``package`` may not make."""
    allowed = (package, *MAY_IMPORT[package])
    return [
        f"line {line} imports {name}"
        for line, name in imported_names(package, ast.parse(source))
        if within(name, "spyrec") and not any(within(name, a) for a in allowed)
    ]


@pytest.mark.parametrize("name", LINKS)
def test_each_link_is_relative_and_leads_to_its_folder(name: str) -> None:
    assert os.readlink(ROOT / "spyrec" / name) == f"../{name}"


@pytest.mark.parametrize(("package", "folder"), FOLDERS.items())
def test_each_package_stands_where_the_mapping_says(package: str, folder: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve().parent == ROOT / folder
    assert setuptools_table()["package-dir"][package] == folder  # type: ignore[index]


def test_every_subpackage_on_disk_is_listed() -> None:
    packages = {name for name, file in modules_on_disk().items() if file.name == "__init__.py"}
    listed = setuptools_table()["packages"]
    assert isinstance(listed, list)
    with_code = set(listed) - {"spyrec.sim.devices"}  # holds TOML files only
    assert packages == with_code


def test_no_root_package_or_conftest() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "conftest.py").exists()


def test_no_file_is_loaded_under_two_names() -> None:
    code = (
        "import pkgutil, importlib, sys, os, spyrec\n"
        "for m in pkgutil.walk_packages(spyrec.__path__, 'spyrec.'):\n"
        "    if m.name.endswith('__main__'): continue\n"
        "    try: importlib.import_module(m.name)\n"
        "    except ModuleNotFoundError as e:\n"
        "        assert m.name == 'spyrec.torch' and e.name == 'torch'\n"
        "seen = {}\n"
        "for name, m in sorted(sys.modules.items()):\n"
        "    f = getattr(m, '__file__', None)\n"
        "    if f and os.path.realpath(f).startswith(os.getcwd() + os.sep) and '.venv' not in f:\n"
        "        seen.setdefault(os.path.realpath(f), []).append(name)\n"
        "print(sum(len(v) == 1 for v in seen.values()), [v for v in seen.values() if len(v) > 1])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    once, _, twice = run.stdout.strip().partition(" ")
    assert twice == "[]"
    assert int(once) >= 10


def test_every_module_on_disk_can_be_found_by_its_import_name() -> None:
    found = {m.name for m in pkgutil.walk_packages(spyrec.__path__, "spyrec.")} | {"spyrec"}
    assert set(modules_on_disk()) <= found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_rooms_import_only_downwards(package: str) -> None:
    folder = ROOT / FOLDERS[package]
    faults = [
        f"{file.relative_to(ROOT)} {fault}"
        for file in sources(folder)
        for fault in upward(package, file.read_text("utf-8"))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("package", "source", "faults"),
    [
        ("spyrec.ir", "from .core import Op", []),
        ("spyrec.ir", "import spyrec.sim.isa", ["line 1 imports spyrec.sim.isa"]),
        ("spyrec.ir", "def f():\n    from spyrec import passes", ["line 2 imports spyrec.passes"]),
        ("spyrec.sim", "import os, spyrec.ir.types", ["line 1 imports spyrec.ir.types"]),
        ("spyrec.passes", "from spyrec.sim.device import load_device", []),
        ("spyrec.passes", "from spyrec.sim import isa", ["line 1 imports spyrec.sim.isa"]),
        ("spyrec.passes", "import spyrec.cli", ["line 1 imports spyrec.cli"]),
    ],
)
def test_the_import_guard_sees_upward_imports(
    package: str, source: str, faults: list[str]
) -> None:
    assert upward(package, source) == faults


def test_no_parent_relative_imports_and_no_bare_folder_imports() -> None:
    faults = []
    for file in modules_on_disk().values():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [] if node.level else [node.module or ""]
                if node.level > 1:
                    faults.append(f"{file.relative_to(ROOT)}:{node.lineno} climbs with '..'")
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if any(name.split(".")[0] in LINKS for name in names):
                faults.append(f"{file.relative_to(ROOT)}:{node.lineno} imports a bare folder")
    assert faults == []


def test_no_file_is_longer_than_500_lines() -> None:
    files = [*modules_on_disk().values(), *sources(ROOT / "tests")]
    assert [str(f) for f in files if len(f.read_text("utf-8").splitlines()) > 500] == []


@pytest.mark.slow
def test_the_wheel_holds_the_same_modules_as_the_tree(tmp_path: Path) -> None:
    copy = tmp_path / "tree"  # so that no build/ folder of the tree can leak in or out
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )
    for name in listing.stdout.splitlines():
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                target.symlink_to(os.readlink(source))
            else:
                target.write_bytes(source.read_bytes())
    wheels = tmp_path / "wheels"
    run = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(wheels), str(copy)],
        capture_output=True, text=True, check=False,
    )
    assert run.returncode == 0, run.stderr
    [wheel] = wheels.glob("spyrec-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert {n for n in names if n.endswith(".py")} == {
        name.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
        for name, file in modules_on_disk().items()
    }
    data = {
        f"{package.replace('.', '/')}/{file.relative_to(ROOT / folder)}"
        for package, folder in FOLDERS.items()
        for file in files_below(ROOT / folder)
        if file.suffix in (".toml", ".lark", ".typed", ".json", ".html", ".css", ".js")
    }
    assert {n for n in names if not n.endswith(".py")} == data
