"""When claims can be what a compiler says: they fit their program, whatever they say of it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from .errors import ObjectError
from .isa import MAX_DIMS, Affine, Claim, Instr, Intent, Kernel, Loop, Num, Program, Stream, Tensor

RANK = 32  # dimensions of a tensor, digits of a dimension, extents of an intent
NUMBER = 2**40  # beyond every element, stick and turn


def check_claims(program: Program) -> None:
    """ObjectError, naming kernel or launch, at the first claim that cannot be."""
    for tensor in program.tensors:
        _check_tensor(tensor, f"tensor %{tensor.name}")
    ranks = [_ranks(program, kernel) for kernel in program.kernels]
    for i, launch in enumerate(program.launches):
        if any(not 0 <= n < len(program.tensors) for n in launch.tensors):
            raise ObjectError(f"launch {i}: it binds a tensor that the program does not name")
        for number, rank in ranks[launch.kernel].items():
            if number >= len(launch.tensors):
                raise ObjectError(
                    f"launch {i}: it binds {len(launch.tensors)} tensors, the claims of its kernel "
                    f"speak of number {number}"
                )
            tensor = program.tensors[launch.tensors[number]]
            if len(tensor.shape) != rank:
                raise ObjectError(
                    f"launch {i}: {rank} coordinates of %{tensor.name}, of {len(tensor.shape)} "
                    "dimensions"
                )


def _ranks(program: Program, kernel: Kernel) -> dict[int, int]:
    """Number -> rank of each tensor that claims of a kernel speak of."""
    what = f"claims of kernel @{kernel.name}"
    for tensor in kernel.tiles:
        _check_tensor(tensor, what)
    found = {-1 - i: len(tensor.shape) for i, tensor in enumerate(kernel.tiles)}
    for stream in kernel.streams.values():
        for instr, depth in _each(stream, 0):
            if len(instr.intents) > kernel.cores:
                raise ObjectError(f"{what}: {len(instr.intents)} intents for {kernel.cores} cores")
            for intent in instr.intents:
                _check_intent(kernel, instr, intent, depth, f"{what}, {instr.op}")
                for claim in intent.claims:
                    if claim.tensor < -len(kernel.tiles):
                        raise ObjectError(f"{what}: there is no tile {-claim.tensor}")
                    if found.setdefault(claim.tensor, len(claim.at)) != len(claim.at):
                        raise ObjectError(f"{what}: coordinates of one tensor differ in rank")
    if not program.tensors and (kernel.tiles or found):
        raise ObjectError(f"{what}: the program names no tensors")
    return {number: rank for number, rank in found.items() if number >= 0}


def _check_tensor(tensor: Tensor, what: str) -> None:
    rank = len(tensor.shape)
    digits = (*tensor.digits, *tensor.lanes)
    if not 1 <= rank <= RANK or not 0 <= tensor.stick_dim < rank or len(digits) > RANK * RANK:
        raise ObjectError(f"{what}: a tensor of {rank} dimensions, sticks along {tensor.stick_dim}")
    for dim, size, stride, weight in digits:
        if not (0 <= dim < rank and 1 <= size < NUMBER and 1 <= stride < NUMBER and weight >= 0):
            raise ObjectError(f"{what}: digit {dim}:{size}*{stride} of a tensor cannot be")
    if prod(tensor.shape) < 1 or any(not 1 <= n < NUMBER for n in tensor.shape):
        raise ObjectError(f"{what}: a tensor has the shape {tensor.shape}")
    if prod(size for _, size, _, _ in tensor.digits) >= NUMBER or any(
        weight >= NUMBER for *_, weight in digits
    ):
        raise ObjectError(f"{what}: a tensor has too many sticks")
    try:
        tensor.name.encode()
    except UnicodeEncodeError as error:
        raise ObjectError(f"{what}: its name is not text: {error}") from None


def _each(stream: Stream, depth: int) -> Iterator[tuple[Instr, int]]:
    for item in stream:
        if isinstance(item, Loop):
            yield from _each(item.body, depth + 1)
        else:
            yield item, depth


def _check_intent(kernel: Kernel, instr: Instr, intent: Intent, depth: int, what: str) -> None:
    if len(intent.claims) != len(instr.operands) or not intent.claims:
        raise ObjectError(
            f"{what}: {len(intent.claims)} claims for {len(instr.operands)} operands; give one each"
        )
    dims = len(intent.extents) if intent.extents else len(instr.counts)
    if dims > RANK or (instr.op in ("mm", "vec") and dims < len(instr.counts)):
        raise ObjectError(f"{what}: {dims} extents for {len(instr.counts)} counts")
    if intent.where < 0:
        raise ObjectError(f"{what}: where is {intent.where}")
    for extent in intent.extents:
        _check_num(kernel, extent.left, what)
        if not 1 <= extent.step < NUMBER or not 1 <= extent.most < NUMBER:
            raise ObjectError(f"{what}: an extent of {extent.most} in steps of {extent.step}")
        _check_ints(extent.loops, depth, what)
    for claim in intent.claims:
        _check_claim(kernel, claim, max(dims, MAX_DIMS), depth, what)


def _check_claim(kernel: Kernel, claim: Claim, dims: int, depth: int, what: str) -> None:
    if not 1 <= len(claim.at) <= RANK:
        raise ObjectError(f"{what}: {len(claim.at)} coordinates")
    for affine in (*claim.at, claim.turn, claim.made):
        _check_affine(kernel, affine, dims, depth, what)


def _check_affine(kernel: Kernel, affine: Affine, dims: int, depth: int, what: str) -> None:
    _check_num(kernel, affine.start, what)
    _check_ints(affine.steps, dims, what)
    _check_ints(affine.loops, depth, what)


def _check_ints(values: tuple[int, ...], most: int, what: str) -> None:
    if len(values) > most or any(not -NUMBER < v < NUMBER for v in values):
        raise ObjectError(f"{what}: {len(values)} steps where there are at most {most}, or too far")


def _check_num(kernel: Kernel, value: Num, what: str) -> None:
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) and len(value) != kernel.cores:
        raise ObjectError(f"{what}: {len(value)} numbers for {kernel.cores} cores")
    if any(not -NUMBER < v < NUMBER for v in values):
        raise ObjectError(f"{what}: a number is beyond {NUMBER}")
