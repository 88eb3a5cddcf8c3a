"""95 % intervals of a mean by Student's t, and the quantiles that they take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

NORMAL_975 = 1.959963984540054

# 0.975 quantiles of Student's t for 1..30 degrees of freedom; above, `t_quantile_975` is exact to 1e-4.
_T_975 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def t_quantile_975(degrees: int) -> float:
    """The 0.975 quantile of Student's t: a table up to 30 degrees of freedom, then the Cornish-Fisher expansion
    (Abramowitz and Stegun 26.7.5, two terms; error below 1e-4). Raises ValueError below one degree."""
    if degrees < 1:
        raise ValueError(f"Student's t with {degrees} degrees of freedom is undefined: at least 1 is needed")
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def half_width(values: Sequence[float]) -> float | None:
    """Of the 95 % interval of a mean: t(0.975, n - 1) * sd / sqrt(n); None for one value."""
    n = len(values)
    return t_quantile_975(n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 1 else None
