"""Stationary distributions and stationary ratios from logged transitions.

Importing this package loads NumPy alone: Numba, SciPy and all optional packages load when first needed.
"""

from lingendice.audit import Audit, audit
from lingendice.checks import NotAvailableYet
from lingendice.counts import Counts
from lingendice.operator import EmpiricalOperator
from lingendice.solution import Interrupted, SeveralLaws, Solution, Status
from lingendice.solve import LeakWarning, solve

__version__ = "0.1.0.dev0"

__all__ = [
    "Audit",
    "Counts",
    "EmpiricalOperator",
    "Interrupted",
    "LeakWarning",
    "NotAvailableYet",
    "SeveralLaws",
    "Solution",
    "Status",
    "__version__",
    "audit",
    "solve",
]
