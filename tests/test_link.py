"""Programs linked into one with buckets, and taken out of it again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_cli_simulate import doubling

from spyrec.sim.device import load_device
from spyrec.sim.errors import ObjectError, SimulationError
from spyrec.sim.isa import Buffer, Kernel, Launch, Program
from spyrec.sim.link import Part, bucket_program, link
from spyrec.sim.objfile import dump, loads
from spyrec.sim.run import run

KERNELS = tuple(Kernel(name, {}, params) for name, params in (("same", ("a",)), ("b", ("a", "b"))))


def program(size: int, weight: bytes = b"w", cores: int = 32) -> Program:
    """Weight, table as long as the bucket, input, state with a first value, two temporaries that
    share memory, output; two launches in order."""
    data = weight * 256
    buffers = (
        Buffer("w", "const", 256, 0, data),
        Buffer("table", "const", 128 * size, 256, bytes(128 * size)),
        Buffer("x", "input", 128 * size, 4096, None, {"name": "x"}),
        Buffer("cache", "input", 256, 8192, None, {"name": "cache", "first": "cache.first"}),
        Buffer("cache.first", "const", 256, 8448, b"f" * 256),
        Buffer("t", "temp", 128 * size, 16384),
        Buffer("u", "temp", 128, 16384),
        Buffer("y", "output", 128 * size, 32768, None, {"name": "y"}),
    )
    kernels = (KERNELS[0], replace(KERNELS[1], cores=cores))
    launches = (Launch(0, (("w", 128),)), Launch(1, (("x", 0), ("t", 0)), (0,)))
    return Program(kernels, buffers, launches, "", {"model": "m"})


def parts(*programs: Program) -> list[Part]:
    return [Part(f"n={i}", {"n": i}, p, ("cache",), {"k": str(i)})
            for i, p in enumerate(programs, 1)]  # fmt: skip


def test_equal_weights_state_and_kernels_are_there_once() -> None:
    made = link(parts(program(1), program(2, cores=16)))
    assert [(b.name, b.address) for b in made.buffers] == [
        ("w", 0), ("table", 256), ("cache", 384), ("cache.first", 640), ("n=2/table", 896),
        ("n=1/x", 1152), ("n=1/t", 1408), ("n=1/u", 1408), ("n=1/y", 1280),
        ("n=2/x", 1152), ("n=2/t", 1664), ("n=2/u", 1664), ("n=2/y", 1408),
    ]  # fmt: skip
    assert [k.name for k in made.kernels] == ["n=1/same", "n=1/b", "n=2/b"]
    assert [(x.kernel, x.args, x.after) for x in made.launches] == [
        (0, (("w", 128),), ()), (1, (("n=1/x", 0), ("n=1/t", 0)), (0,)),
        (0, (("w", 128),), ()), (2, (("n=2/x", 0), ("n=2/t", 0)), (2,)),
    ]  # fmt: skip
    assert [(b.name, b.sizes, b.launches, b.meta) for b in made.buckets] == [
        ("n=1", {"n": 1}, 2, {"k": "1"}), ("n=2", {"n": 2}, 2, {"k": "2"})
    ]  # fmt: skip
    assert loads(dump(made)) == made


def test_a_bucket_is_a_program_by_itself() -> None:
    one = bucket_program(link(parts(program(1), program(2, cores=16))), 1)
    assert [k.name for k in one.kernels] == ["n=1/same", "n=2/b"]
    assert [b.name for b in one.buffers] == [
        "w", "n=2/table", "n=2/x", "cache", "cache.first", "n=2/t", "n=2/u", "n=2/y"
    ]
    assert [(x.kernel, x.after) for x in one.launches] == [(0, ()), (1, (0,))]
    assert one.buckets == ()


def test_a_weight_of_other_content_is_kept_apart() -> None:
    made = link(parts(program(1), program(1, b"v")))
    assert {b.name for b in made.buffers if b.kind == "const"} == {
        "w", "n=2/w", "table", "cache.first"
    }
    assert bytes(next(b.data for b in made.buffers if b.name == "n=2/w") or b"") == b"v" * 256


def test_state_of_another_layout_is_kept_apart() -> None:
    other = program(2)
    changed = tuple(
        replace(b, meta={**b.meta, "layout": "other"}) if b.name == "cache" else b
        for b in other.buffers
    )
    made = link(parts(program(1), replace(other, buffers=changed)))
    assert [b.name for b in made.buffers if "cache" in b.name] == [
        "cache", "cache.first", "n=2/cache"
    ]
    assert all(
        b.meta["first"] == "cache.first" for b in made.buffers if b.name.endswith("/cache")
    )


def test_programs_for_two_devices_are_not_linked() -> None:
    other = replace(program(2), device=load_device("spyre").text)
    with pytest.raises(ObjectError, match="for one device; compile them again"):
        link(parts(program(1), other))


def test_a_bucket_must_be_chosen_to_run() -> None:
    whole = doubling()
    made = link([Part("n=1", {"n": 1}, whole)])
    device = load_device("spyre")
    with pytest.raises(SimulationError, match="the program has buckets; choose"):
        run(made, device, timing_only=True)
    alone = run(bucket_program(made, 0), device, timing_only=True)
    assert alone.total_cycles == run(whole, device, timing_only=True).total_cycles


BROKEN = [
    ({"launches": 3}, "bucket 'n=1': its launch 2 uses a buffer or waits for a launch of another "
                      "bucket"),
    ({"launches": 9}, "bucket 'n=1': it has launches beyond the 4 there"),
    ({"launches": 1}, "bucket 'n=2': its launch 1 uses a buffer or waits for a launch of another "
                      "bucket"),
    ({"name": "n=2"}, "bucket 'n=2': each bucket has a name of its own, without NUL"),
    ({"sizes": {"n": 0}}, "bucket 'n=1': n is 0, outside 1..2147483647"),
    ({"buffers": ("nil",)}, "bucket 'n=1': it lists a buffer twice, or one that does not exist"),
    ({"buffers": ("w",)}, "bucket 'n=1': its launch 1 uses a buffer or waits for a launch of "
                          "another bucket"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), BROKEN)
def test_what_no_bucket_is(change: dict[str, object], sentence: str) -> None:
    made = link(parts(program(1), program(2, b"v")))
    first = replace(made.buckets[0], **change)  # type: ignore[arg-type]
    with pytest.raises(ObjectError) as caught:
        dump(replace(made, buckets=(first, *made.buckets[1:])))
    assert str(caught.value) == sentence


def test_every_launch_belongs_to_a_bucket() -> None:
    made = link(parts(program(1), program(2)))
    with pytest.raises(ObjectError, match="the buckets have 2 launches, the program 4"):
        dump(replace(made, buckets=made.buckets[:1]))
