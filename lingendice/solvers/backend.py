"""What a backend can do, three verbs, and the host's: exact solvers, the ridge, the saddle point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lingendice.data.checks import require_choice

if TYPE_CHECKING:
    from lingendice.model.operator import EmpiricalOperator
    from lingendice.solvers.problem import SaddleFit
    from lingendice.solvers.request import Request
    from lingendice.solvers.ridge import RidgeSystem
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


METHODS = (
    "auto", "gth", "elimination", "gauss-seidel", "aggregation", "convex", "extragradient", "sgd",
)  # fmt: skip


class HostBackend:
    """The three verbs in compiled code on the host; what they need is imported when first called."""

    def check(self, request: Request) -> None:
        """Refuse methods and options that there are not; those of the saddle point are read there."""
        require_choice("method", request.method.name, METHODS)
        if request.wants_saddle:
            return
        request.require_exact_terms()
        for name in sorted(request.method.options):
            raise ValueError(f"options has no entry {name!r} for this method; known: 'on_interrupt'")

    def refuse_exact_options(self, request: Request) -> None:
        """There are none here."""

    def stationary(self, operator: EmpiricalOperator, request: Request) -> Distributions:
        """Elimination, sweeps or aggregation: see :mod:`lingendice.solvers.stationary`."""
        from lingendice.solvers.stationary import stationary_distributions

        return stationary_distributions(
            operator.chain,
            operator.gamma,
            operator.initial,
            request.follows_initial,
            request.method.name,
            request.limits,
        )

    def ridge(self, operator: EmpiricalOperator, request: Request) -> RidgeSystem:
        """The regularized least-squares problem over seen cells."""
        from lingendice.solvers.ridge import RidgeSystem

        return RidgeSystem(operator, request.ridge)

    def saddle(self, operator: EmpiricalOperator, request: Request) -> SaddleFit:
        """Newton steps, extragradient or stochastic steps: see :mod:`lingendice.solvers.saddle`."""
        from lingendice.solvers.saddle import solve_saddle

        return solve_saddle(operator, request)
