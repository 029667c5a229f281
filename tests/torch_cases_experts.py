"""What mixtures of experts are made of, and masks: as torch_cases."""

from __future__ import annotations

import numpy as np
from torch_cases import BOOL, F32, Array, case, floats, ints, normal, softmax

E4 = normal(4, 3, 2)
ROWS = normal(6, 3)
ENDS = ints(1, 1, 4, 5)
"""One row for the first matrix, none for the second, the last row for no one."""
OF_ROW = [0, 2, 2, 2, 3]
GROUPED = np.concatenate([[ROWS[i] @ E4[g] for i, g in enumerate(OF_ROW)], np.zeros((1, 2))])
GROUPED = GROUPED.astype(F32)

Q, K, V = normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
SEEN = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], BOOL)
H = floats(-1, 0, 0.4, 2, 3.5, 6.9, 7, 8)


def attended() -> Array:
    """The second query sees no key: zeros."""
    scores = np.where(SEEN, Q @ K.swapaxes(-1, -2) / 2, -np.inf).astype(F32)
    scores[..., 1, :] = 0
    return np.where(SEEN.any(1)[:, None], softmax(scores) @ V, 0).astype(F32)


CASES = [
    case("_grouped_mm", normal(2, 2, 4) @ normal(2, 4, 4), self=normal(2, 2, 4),
         mat2=normal(2, 4, 4), tol=1e-4),
    case("transformers.grouped_mm_fallback", GROUPED, input=ROWS, weight=E4, offs=ENDS),
    case("transformers.grouped_mm_fallback", GROUPED, input=ROWS, weight=E4,
         offs=ENDS.astype(np.int32)),
    case("histc", np.histogram(H, 7, (0, 7))[0].astype(F32), self=H, bins=7, min=0, max=7),
    case("histc", np.histogram(H, 3, (-1, 7))[0].astype(F32), self=H, bins=3, min=-1, max=7),
    case("index_put", np.where(ROWS > 0, F32(7), ROWS), self=ROWS, indices=[ROWS > 0],
         values=F32(7)),
    case("index_put", ROWS + F32(2) * (ROWS[:, :1] > 0), self=ROWS, indices=[ROWS[:, 0] > 0],
         values=floats(2), accumulate=True),
    case("scaled_dot_product_attention", attended(), query=Q, key=K, value=V, attn_mask=SEEN),
]  # fmt: skip
