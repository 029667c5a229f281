"""What well-formed holdings of a program are: parts of its tensors, on cores that there are."""

from __future__ import annotations

from .errors import ObjectError
from .isa import Holding, Program, Tensor

MOST_BYTES = 2**40  # beyond every scratchpad


def check_holdings(program: Program, cores: int) -> None:
    """ObjectError, naming the tensor, at the first holding that cannot be."""
    fine: set[tuple[object, ...]] = set()
    for holding in program.holdings:
        if not 0 <= holding.tensor < len(program.tensors):
            raise ObjectError(f"a holding is of tensor {holding.tensor}, which is not there")
        tensor = program.tensors[holding.tensor]
        what = f"what the scratchpads hold of %{tensor.name}"
        launches = holding.launches
        if not launches or sorted({*launches}) != [*launches]:
            raise ObjectError(f"{what}: its launches {launches[:4]} do not ascend")
        if launches[0] < 0 or launches[-1] >= len(program.launches):
            raise ObjectError(f"{what}: it names a launch beyond the {len(program.launches)} there")
        if not (0 <= holding.address < MOST_BYTES and 0 <= holding.size < MOST_BYTES):
            raise ObjectError(f"{what}: {holding.size} bytes at {holding.address}")
        try:
            holding.dtype.encode()
        except UnicodeEncodeError as error:
            raise ObjectError(f"{what}: its element type is not text: {error}") from None
        key = (tensor.shape, holding.boxes)
        if key not in fine:
            _check_boxes(holding, tensor, cores, what)
            fine.add(key)


def _check_boxes(holding: Holding, tensor: Tensor, cores: int, what: str) -> None:
    if not 1 <= len(holding.boxes) <= cores:
        raise ObjectError(f"{what}: {len(holding.boxes)} parts for {cores} cores")
    for core, box in enumerate(holding.boxes):
        if len(box) != len(tensor.shape) or any(
            start < 0 or count < 0 or start + count > size
            for (start, count), size in zip(box, tensor.shape, strict=False)
        ):
            raise ObjectError(f"{what}: {box} on core {core} is no part of {tensor.shape}")
