"""Stationary distributions and stationary ratios from logged transitions.

Importing this package loads NumPy alone: Numba, SciPy and all optional packages load when first needed.
"""

from lingendice.audit import Audit, audit
from lingendice.checks import NotAvailableYet
from lingendice.counts import Counts
from lingendice.diagnostics import Check, diagnose
from lingendice.many import Comparison
from lingendice.online import OnlineRatio
from lingendice.operator import EmpiricalOperator
from lingendice.report import report
from lingendice.ridge_path import RidgePath, ridge_path
from lingendice.solution import Interrupted, SeveralLaws, Solution, Status
from lingendice.solve import LeakWarning, solve
from lingendice.uncertainty import Interval

__version__ = "0.1.0.dev0"

__all__ = [
    "Audit",
    "Check",
    "Comparison",
    "Counts",
    "EmpiricalOperator",
    "Interrupted",
    "Interval",
    "LeakWarning",
    "NotAvailableYet",
    "OnlineRatio",
    "RidgePath",
    "SeveralLaws",
    "Solution",
    "Status",
    "__version__",
    "audit",
    "diagnose",
    "report",
    "ridge_path",
    "solve",
]
