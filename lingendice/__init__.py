"""Stationary distributions and stationary ratios from logged transitions.

Importing this package loads NumPy alone: Numba, SciPy and all optional packages load when first needed.
"""

import sys as _sys
from typing import TYPE_CHECKING, Any

from lingendice.backtest import backtest
from lingendice.data.checks import NotAvailableYet
from lingendice.data.counts import Counts
from lingendice.data.episodes import EpisodeEndWarning, OverlapWarning, RowOrderWarning, UnusedColumnWarning
from lingendice.data.interrupts import Interrupted
from lingendice.data.matrices import RowSumWarning
from lingendice.data.transitions import Transitions
from lingendice.hitting import Hitting, hitting
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.prepared_graph import PreparedGraph
from lingendice.pagerank import pagerank, prepare
from lingendice.report import report
from lingendice.results.backtest import Backtest
from lingendice.results.build import LeakWarning
from lingendice.results.comparison import Comparison
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.diagnostics import Check, diagnose
from lingendice.results.rates_solution import RatesSolution
from lingendice.results.solution import SeveralDistributions, Solution
from lingendice.results.status import Status
from lingendice.results.targets import Interval
from lingendice.results.top_ranks import TopRanks
from lingendice.solve import solve
from lingendice.solve_rates import solve_rates

if TYPE_CHECKING:
    from lingendice import baselines as baselines
    from lingendice import distributed as distributed
    from lingendice import divergences as divergences
    from lingendice import embed as embed
    from lingendice import environments as environments
    from lingendice import features as features
    from lingendice import gpu as gpu
    from lingendice import io as io
    from lingendice import policies as policies
    from lingendice.io.read import read_transitions as read_transitions
    from lingendice.results.attribution import Attribution as Attribution
    from lingendice.results.attribution import removal_effects as removal_effects
    from lingendice.results.audit import Audit as Audit
    from lingendice.results.audit import audit as audit
    from lingendice.results.chain_times import ChainTimes as ChainTimes
    from lingendice.results.lags import Lags as Lags
    from lingendice.results.lags import lags as lags
    from lingendice.results.markov_order import MarkovOrder as MarkovOrder
    from lingendice.results.markov_order import markov_order as markov_order
    from lingendice.results.ridge_path import RidgePath as RidgePath
    from lingendice.results.ridge_path import ridge_path as ridge_path
    from lingendice.results.sensitivity import Sensitivity as Sensitivity
    from lingendice.streaming.online import OnlineRatio as OnlineRatio

__version__ = "0.1.0.dev0"

__all__ = [
    "Attribution",
    "Audit",
    "Backtest",
    "ChainTimes",
    "Check",
    "Comparison",
    "ContinuousSolution",
    "Counts",
    "EmpiricalOperator",
    "EpisodeEndWarning",
    "Hitting",
    "Interrupted",
    "Interval",
    "Lags",
    "LeakWarning",
    "MarkovOrder",
    "NotAvailableYet",
    "OnlineRatio",
    "OverlapWarning",
    "PreparedGraph",
    "RatesSolution",
    "RidgePath",
    "RowOrderWarning",
    "RowSumWarning",
    "Sensitivity",
    "SeveralDistributions",
    "Solution",
    "Status",
    "TopRanks",
    "Transitions",
    "UnusedColumnWarning",
    "__version__",
    "audit",
    "backtest",
    "baselines",
    "diagnose",
    "distributed",
    "divergences",
    "embed",
    "environments",
    "features",
    "hitting",
    "io",
    "lags",
    "markov_order",
    "pagerank",
    "policies",
    "prepare",
    "read_transitions",
    "removal_effects",
    "report",
    "ridge_path",
    "solve",
    "solve_rates",
]


_MODULES = {
    "baselines", "distributed", "divergences", "embed", "environments", "features", "gpu", "io", "policies",
}  # fmt: skip
_HOMES = {
    "Attribution": "results.attribution",
    "Audit": "results.audit",
    "ChainTimes": "results.chain_times",
    "Lags": "results.lags",
    "MarkovOrder": "results.markov_order",
    "OnlineRatio": "streaming.online",
    "RidgePath": "results.ridge_path",
    "Sensitivity": "results.sensitivity",
    "audit": "results.audit",
    "read_transitions": "io.read",
    "lags": "results.lags",
    "markov_order": "results.markov_order",
    "removal_effects": "results.attribution",
    "ridge_path": "results.ridge_path",
}
"""Modules of public names that load when first asked for."""


def __getattr__(name: str) -> Any:
    """Load public modules, and what few programs need, when first asked for."""
    from importlib import import_module

    if name in _HOMES:
        globals()[name] = found = getattr(import_module(f"lingendice.{_HOMES[name]}"), name)
        return found
    if name in _MODULES:
        return import_module(f"lingendice.{name}")
    from lingendice.data.hints import no_attribute

    raise no_attribute("lingendice", name, _sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
