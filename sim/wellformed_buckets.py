"""What well-formed buckets of a program are."""

from __future__ import annotations

from .errors import ObjectError
from .isa import Program

MAX_SIZE = 2**31 - 1


def check_buckets(program: Program) -> None:
    """ObjectError unless the buckets deal out all launches, each with buffers of its own list that
    waits for no launch of another."""
    known = {b.name for b in program.buffers}
    seen: set[str] = set()
    first = 0
    for bucket in program.buckets:
        what = f"bucket {bucket.name!r}"
        if not bucket.name or "\0" in bucket.name or bucket.name in seen:
            raise ObjectError(f"{what}: each bucket has a name of its own, without NUL")
        seen.add(bucket.name)
        for text in (bucket.name, *bucket.sizes, *bucket.meta, *bucket.meta.values()):
            _text(text, what)
        for dim, size in bucket.sizes.items():
            if not 1 <= size <= MAX_SIZE:
                raise ObjectError(f"{what}: {dim} is {size}, outside 1..{MAX_SIZE}")
        holds = set(bucket.buffers)
        if not holds <= known or len(holds) < len(bucket.buffers):
            raise ObjectError(f"{what}: it lists a buffer twice, or one that does not exist")
        end = first + bucket.launches
        if bucket.launches < 0 or end > len(program.launches):
            raise ObjectError(f"{what}: it has launches beyond the {len(program.launches)} there")
        for number in range(first, end):
            launch = program.launches[number]
            outside = [name for name, _ in launch.args if name not in holds]
            if outside or any(i < first for i in launch.after):
                raise ObjectError(
                    f"{what}: its launch {number} uses a buffer or waits for a launch of another "
                    "bucket"
                )
        first = end
    if first != len(program.launches):
        raise ObjectError(
            f"the buckets have {first} launches, the program {len(program.launches)}"
        )


def _text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ObjectError(f"{what}: not text that UTF-8 can hold: {error}") from None
