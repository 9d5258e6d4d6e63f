"""What a backend can do: three verbs, of which host and device each have one implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lingendice.model.operator import EmpiricalOperator
    from lingendice.solvers.request import Request
    from lingendice.solvers.ridge import RidgeSystem
    from lingendice.solvers.saddle_outcome import SaddleFit
    from lingendice.solvers.stationary import Distributions


class Backend(Protocol):
    """Solves for an operator over counts on the host and returns outcomes; solutions are made elsewhere."""

    def check(self, request: Request) -> None:
        """Refuse methods and options that this backend does not have, before any work."""

    def refuse_exact_options(self, request: Request) -> None:
        """Refuse options of the exact equation where the default with a policy is fitted, on the host."""

    def stationary(self, operator: EmpiricalOperator, request: Request) -> Distributions:
        """Every stationary distribution: the exact equation."""

    def ridge(self, operator: EmpiricalOperator, request: Request) -> RidgeSystem:
        """The ridge problem, whose ``solve`` gives the fit and whose ``adjoint`` judges it."""

    def saddle(self, operator: EmpiricalOperator, request: Request) -> SaddleFit:
        """GenDICE's saddle point, over tables or features, with its primal-dual gap."""
