"""``torch.compile(model, backend="spyrec")`` and models handed over in memory; needs torch."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spyrec

torch = pytest.importorskip("torch", reason="torch is an extra; see docs/torch.md")

TOLERANCE = 0.02  # 16-bit numbers of size one


class Small(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A linear layer, a graph break, an activation, and things that are no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("cache", torch.zeros(4, 64))

    def forward(self, x: Any, factor: int) -> tuple[Any, ...]:
        self.cache[1:2] = x[:1]
        y = self.linear(x) * factor
        torch._dynamo.graph_break()
        return torch.nn.functional.gelu(y), x.shape[0], self.cache.sum(), None


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Small().eval()


def test_compiled_model_gives_what_eager_gives(small: Small) -> None:
    compiled = torch.compile(small, backend="spyrec", options={"device": "spyre"})
    with torch.no_grad():
        for rows, factor in ((3, 2), (5, 3), (3, 2)):
            x = torch.randn(rows, 64)
            small.cache.zero_()
            got = compiled(x, factor)
            written = small.cache.clone()
            small.cache.zero_()
            want = small(x, factor)
            assert torch.allclose(got[0], want[0], atol=TOLERANCE)
            assert got[1] == want[1] == rows
            assert torch.allclose(got[2], want[2], atol=0.1)
            assert got[3] is None
            assert torch.allclose(written, small.cache, atol=TOLERANCE)


def test_changed_weights_are_compiled_anew(small: Small) -> None:
    compiled = torch.compile(small, backend="spyrec")
    x = torch.randn(3, 64)
    with torch.no_grad():
        before = compiled(x, 1)[0]
        small.linear.weight.mul_(-1)
        after = compiled(x, 1)[0]
        assert not torch.allclose(before, after, atol=0.1)
        assert torch.allclose(after, small(x, 1)[0], atol=TOLERANCE)


def test_what_steers_and_what_changes() -> None:
    """A truth value that breaks the graph, and a number that changes from call to call."""
    torch._dynamo.reset()
    scaled = torch.compile(lambda x, s: x * s if x.sum() > 0 else x - s, backend="spyrec")
    with torch.no_grad():
        for factor in (0.5, 2.5, 4.0):
            assert torch.allclose(scaled(torch.ones(2), factor), torch.full((2,), factor))
        assert torch.allclose(scaled(-torch.ones(2), 1.0), torch.full((2,), -2.0))


def test_weights_changed_behind_torch_s_back(small: Small) -> None:
    compiled = torch.compile(small, backend="spyrec")
    with torch.no_grad():
        compiled(torch.ones(1, 64), 1)
        for _ in range(10):
            small.linear.weight.data = torch.randn(64, 64)
            x = torch.randn(1, 64)
            assert torch.allclose(compiled(x, 1)[0], small(x, 1)[0], atol=0.2)


def test_inputs_that_share_memory_are_refused() -> None:
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="share memory and the graph writes"):
        x = torch.zeros(4)
        torch.compile(lambda a, b: (a.add_(1), a + b)[1], backend="spyrec")(x, x.view(4))


def test_last_report_and_report_file(small: Small, tmp_path: Path) -> None:
    from spyrec.torch import last_report

    path = tmp_path / "report.json"
    compiled = torch.compile(small, backend="spyrec", options={"report": str(path)})
    with torch.no_grad():
        compiled(torch.randn(2, 64), 1)
    assert last_report()["total_cycles"] > 0
    assert json.loads(path.read_text()) == last_report()


def test_an_unknown_option_is_refused(small: Small) -> None:
    compiled = torch.compile(small, backend="spyrec", options={"devise": "spyre"})
    with pytest.raises(Exception, match="no option 'devise'; it has device, numerics"):
        compiled(torch.randn(2, 64), 1)


def test_three_doors_give_the_same_cycles(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128))
    model.eval()
    x = torch.randn(8, 64)
    exported = torch.export.export(model, (x,))
    torch.export.save(exported, tmp_path / "model.pt2")
    runs = [
        spyrec.simulate(spyrec.compile(source), {"input": x.numpy()})
        for source in (exported, tmp_path / "model.pt2")
    ]
    with torch.no_grad():
        want = model(x).numpy()
        got = torch.compile(model, backend="spyrec")(x).numpy()
    from spyrec.torch import last_report

    assert runs[0].total_cycles == runs[1].total_cycles == last_report()["total_cycles"]
    for result in runs:
        np.testing.assert_array_equal(result.outputs["output"], got)
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


def test_a_module_needs_example_inputs() -> None:
    linear = torch.nn.Linear(64, 64)
    for module in (linear, torch.fx.symbolic_trace(linear)):
        with pytest.raises(spyrec.SpyrecError, match="this Linear does not tell the shapes"):
            spyrec.compile(module)
        program = spyrec.compile(module, example_inputs=(torch.randn(2, 64),))
        assert [str(p) for p in program.inputs] == ["input: f32[2x64]"]


def test_a_run_takes_tensors_of_any_kind_the_model_has() -> None:
    linear = torch.nn.Linear(64, 64).bfloat16()
    x = torch.randn(2, 64, dtype=torch.bfloat16, requires_grad=True)
    program = spyrec.compile(linear, example_inputs=(x,))
    want = linear(x).detach().float().numpy()
    session = spyrec.Session(program)
    for result in (spyrec.simulate(program, {"input": x}), session.run(program, {"input": x})):
        np.testing.assert_allclose(result.outputs["output"], want, atol=TOLERANCE)
    with pytest.raises(spyrec.SpyrecError, match=r"expected float32.*, got float64"):
        spyrec.simulate(program, {"input": x.double()})
    with pytest.raises(spyrec.SpyrecError, match="a tensor is sparse; hand in a dense one"):
        spyrec.simulate(program, {"input": x.detach().to_sparse()})


def test_numbers_of_a_graph_with_dynamic_sizes_are_written_into_it() -> None:
    """torch then hands over a float, such as the eps of a norm, as a tensor and asks for it."""
    torch._dynamo.reset()

    def scaled(x: Any, eps: float) -> Any:
        return torch.nn.functional.layer_norm(x, (64,), eps=eps) * eps

    compiled = torch.compile(scaled, backend="spyrec", dynamic=True)
    for rows, eps in ((3, 1.5), (5, 1.5), (5, 0.25)):
        x = torch.randn(rows, 64)
        assert torch.allclose(compiled(x, eps), scaled(x, eps), atol=TOLERANCE)


def test_results_that_are_views_come_back_as_views() -> None:
    """Of an input, of an input that the model writes, and of another result."""
    torch._dynamo.reset()

    def forward(x: Any) -> tuple[Any, ...]:
        y = x * 2
        return x.view(-1)[6:], y, y.t(), x[1:2] + 1

    x = torch.arange(24.0).reshape(4, 6)
    with torch.no_grad():
        tail, y, turned, fresh = torch.compile(forward, backend="spyrec")(x)
        assert torch.equal(tail, x.view(-1)[6:])
        assert torch.equal(turned, y.t())
        x[1, 0], y[0, 1] = 100, 200
        assert (tail[0], turned[1, 0]) == (100, 200)
        fresh.zero_()
        assert x[1, 1] == 7

    def writes(x: Any) -> Any:
        x.add_(1)
        return x[2:]

    with torch.no_grad():
        rest = torch.compile(writes, backend="spyrec")(x)
        assert torch.equal(rest, x[2:])
        assert rest.data_ptr() == x[2:].data_ptr()


def test_inputs_are_called_as_the_user_calls_them() -> None:
    torch._dynamo.reset()

    def forward(x: Any, more: dict[str, Any]) -> Any:
        return x * more["scale"]

    wide = torch.full((4,), 2**40)
    with torch.no_grad(), pytest.raises(spyrec.SpyrecError, match="input 'more_scale' holds whole"):
        torch.compile(forward, backend="spyrec")(torch.ones(4), {"scale": wide})


def test_first_calls_from_several_threads() -> None:
    """Each compiles while others trace."""
    torch._dynamo.reset()
    models = [torch.nn.Sequential(torch.nn.Linear(8, 8 + n), torch.nn.GELU()) for n in range(4)]
    compiled = [torch.compile(m.eval(), backend="spyrec") for m in models]
    together, x, failed = threading.Barrier(4), torch.ones(2, 8), list[BaseException]()

    def call(n: int) -> None:
        together.wait()
        try:
            with torch.no_grad():
                assert torch.allclose(compiled[n](x), models[n](x), atol=TOLERANCE)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_import_torch_does_not_import_spyrec() -> None:
    """The entry point is read when the backend is asked for."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import torch, sys; print('spyrec' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert loaded.stdout.split() == ["False"]


def test_graphs_that_were_compiled_before_come_from_the_cache(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYREC_CACHE", str(tmp_path))
    x, built, given = torch.randn(3, 64), [], []
    compile_ = spyrec.api.compile

    def watched(model: Any, **options: Any) -> Any:
        built.append(compile_(model, **options))
        return built[-1]

    monkeypatch.setattr(spyrec.api, "compile", watched)
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            given.append(torch.compile(small, backend="spyrec", options={"cache": True})(x, 2)[0])
    half = len(built) // 2
    assert [p.from_cache for p in built] == [False] * half + [True] * half
    assert half > 0
    assert torch.equal(given[0], given[1])


IMPORT = """
import site, sys, time
start = time.process_time()
site.addsitedir(sys.argv[1])
import torch
print(time.process_time() - start, len(torch.__version__))
"""


def import_seconds(folder: Path, times: int) -> dict[bool, list[float]]:
    """Processor seconds to import torch, with spyrec among the installed packages and without, in
    turn: from folders of links to all that is installed."""
    for known in (True, False):
        made = folder / str(known)
        made.mkdir()
        for found in (f for path in sys.path if path.endswith("site-packages")
                      for f in Path(path).iterdir()):  # fmt: skip
            ours = found.name.startswith(("spyrec", "__editable__")) and "spyrec" in found.name
            if (known or not ours) and not (made / found.name).exists():
                (made / found.name).symlink_to(found)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(times):
        for known, taken in seconds.items():
            done = subprocess.run(
                [sys.executable, "-S", "-c", IMPORT, str(folder / str(known))],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            taken.append(float(done.stdout.split()[0]))
    return seconds


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_import_torch_is_not_slower_with_spyrec(tmp_path: Path) -> None:
    """Medians of 20 imports each."""
    times = import_seconds(tmp_path, 20)
    more = 1e3 * (statistics.median(times[True]) - statistics.median(times[False]))
    print(f"import torch takes {more:.0f} ms more with spyrec installed")
    assert more <= 50
