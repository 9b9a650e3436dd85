"""How far repeats lie apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def spread(values: Sequence[float]) -> dict[str, float]:
    """Smallest, quartiles and largest of some repeats."""
    quartiles = np.quantile(np.asarray(values, dtype=np.float64), [0.0, 0.25, 0.5, 0.75, 1.0])
    return dict(zip(("min", "q1", "median", "q3", "max"), quartiles.tolist(), strict=True))
