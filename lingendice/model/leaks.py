"""Leaks: cells that are reached but have no outgoing transitions, and what happens past them.

``leak="restart"`` visits the cell and goes on from the restart distribution; ``"absorb"`` visits it and keeps
all that would have followed (gamma < 1); ``"error"`` restarts, and the result is refused where mass arrives.
A smoothing prior gives such cells a row of their own. All of it is decided here: which distribution a row
falls back to, what mass a leak holds, how leaks are folded away, and what is said of them.

References
----------
C. D. Meyer (1989). Stochastic complementation, uncoupling Markov chains, and the theory of nearly reducible
    systems. SIAM Review 31.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_choice
from lingendice.model.transition_rows import TransitionRows

LARGE_LEAK = 0.01
"""Stationary mass in leaks above which a solution warns and a check fails."""
LEAK_WORTH_BOUNDS = 1e-3
"""Stationary mass in leaks above which bounds on the value are worth another solve."""


# -- what rows fall back to ----------------------------------------------------------------------------------


class Fallbacks(NamedTuple):
    """Where rows without data, and transitions that ended, go on; None where their mass is absorbed.

    The names are ``"prior"`` (of the smoothing), ``"restart"`` (as given), ``"initial"`` and ``"data"`` (the
    data distribution of the states).
    """

    unseen: str | None
    ended: str | None
    ends_absorb: bool
    """Whether episodes end for good: tau then has less than unit mass."""


def read_fallbacks(
    leak: str, terminal: str, ends_for_good: bool, *, has_terminals: bool, has_initial: bool,
    has_restart: bool, smoothed: bool = False,
) -> Fallbacks:  # fmt: skip
    """Decide from the user's words where mass goes that the data do not place.

    ``ends_for_good``: mass may be lost, since a discount brings new mass in and a horizon needs none.
    """
    require_choice("leak", leak, ("restart", "absorb", "error"))
    require_choice("terminal", terminal, ("auto", "restart", "absorb"))
    if absorbs(leak) and not ends_for_good:
        raise ValueError('leak="absorb" loses all mass at gamma=1; use leak="restart" or gamma < 1')
    if has_restart and (smoothed or absorbs(leak)):
        instead = "smoothing= leads on from there" if smoothed else 'leak="absorb" keeps their mass'
        raise ValueError(
            f"restart= is where states without outgoing transitions go on, but {instead}; leave one out"
        )
    if smoothed:
        unseen = "prior"
    elif absorbs(leak):
        unseen = None
    elif has_restart:
        unseen = "restart"
    else:
        unseen = "initial" if ends_for_good and has_initial else "data"
    if not has_terminals:
        return Fallbacks(unseen, None, False)
    if terminal == "absorb" and not ends_for_good:
        raise ValueError(
            'terminal="absorb" leaves no stationary distribution at gamma=1; use terminal="restart" or '
            "gamma < 1"
        )
    if terminal == "absorb" or (terminal == "auto" and ends_for_good):
        return Fallbacks(unseen, None, True)
    if not has_initial:
        raise ValueError(
            "terminal transitions restart from the initial distribution, which is unknown here; pass "
            "initial=, episode= to Counts.from_transitions, or first_state= to gpu.count_transitions"
        )
    return Fallbacks(unseen, "initial", False)


def absorbs(treatment: str) -> bool:
    """Whether leaks keep the mass that visits them, where no prior leads on from there."""
    return treatment == "absorb"


def refuses(treatment: str) -> bool:
    """Whether a solution is refused where mass arrives in leaks."""
    return treatment == "error"


# -- mass in leaks -------------------------------------------------------------------------------------------


def mass_per_visit(absorbed: Any, gamma: float) -> Any:
    """Mass that a leak holds for each visit: one step, and all that would have followed what it absorbs."""
    return 1.0 + (gamma / (1.0 - gamma) * absorbed if gamma < 1.0 else 0.0 * absorbed)


def refusal(leak: float, cell: str) -> str:
    """Why ``leak="error"`` refuses a solution, naming a cell."""
    return (
        f"{cell} is reached but has no outgoing transitions ({leak:.2%} of the stationary mass lies in such "
        'cells); add data there, or choose leak="restart" or leak="absorb"'
    )


def warning(leak: float, treatment: str, has_restart: bool, where: str) -> str | None:
    """What to warn of; None for a small leak.

    Who names the restart distribution has decided what happens there: PageRank's dangling nodes are no
    surprise.
    """
    if leak <= LARGE_LEAK or treatment != "restart" or has_restart:
        return None
    return f"{leak:.1%} of the stationary mass lies where there is no data{where}; the value leaves it out"


# -- leaks folded away ---------------------------------------------------------------------------------------

MOST_VISITS = 1e12
"""Visits to leaks in a row beyond which rounding alone says whether mass ever comes back to the data."""


def _visits_to_hubs(moves: Floats) -> Floats:
    """(I - M)^-1 for the moves M from hub to hub by way of leaks, refused where mass stays among them."""
    visits: Floats = np.full(moves.shape, np.inf)
    with suppress(np.linalg.LinAlgError):
        visits[:] = np.linalg.inv(np.eye(len(moves)) - moves)
    if not np.abs(visits).max(initial=0.0) < MOST_VISITS:
        raise ValueError(
            "mass that enters cells without data never comes back: there is nothing that a ridge or a saddle "
            'point could weigh, and the value is not identified; take a smaller gamma, unseen="mean", or a '
            "restart= from which the policy takes logged actions"
        )
    return visits


@dataclass(frozen=True, eq=False)
class Closure:
    """The chain over cells with data that remains when leaks are folded away (censored).

    Of the mass a(s) that arrives in a state, ``onward(s, k)`` goes on from leaks to hub k. Hubs lead to
    states, and from there perhaps to leaks again:

        hubs(a)     = gamma a' onward (I - gamma D onward)^-1 ,   D the distributions of the hubs
        arrivals(a) = a + hubs(a) D

    so that one dense system of the number of hubs, three at most, closes the chain.
    """

    rows: TransitionRows
    gamma: float
    unseen: NDArray[np.bool_]
    """Cells without data."""
    onward: Floats
    held: Floats
    """Mass that leaks hold for each unit that arrives in a state."""
    inverse: Floats

    @classmethod
    def of(cls, rows: TransitionRows, policy: Floats, seen: NDArray[np.bool_], gamma: float) -> Closure:
        """Fold away the cells not ``seen``; ``policy`` (states by actions) spreads states over cells."""
        share = np.where(seen.reshape(policy.shape), 0.0, policy)
        onward = np.einsum("sa,sak->sk", share, rows.out.reshape(*policy.shape, -1))
        inverse = _visits_to_hubs(gamma * (rows.distribution @ onward))
        visit = mass_per_visit(rows.absorbed, gamma).reshape(policy.shape)
        held = np.einsum("sa,sa->s", share, visit)
        return cls(rows, gamma, ~seen, onward, held, inverse)

    def arrivals(self, arriving: Floats) -> Floats:
        """Mass over states with what leaks send on; columns of a matrix are closed together."""
        hubs = self.gamma * (self.inverse.T @ (self.onward.T @ arriving))
        return arriving + self.rows.distribution.T @ hubs  # type: ignore[no-any-return]

    def values(self, state_values: Floats) -> Floats:
        """Values of all leaks from those of states, the adjoint of :meth:`arrivals`."""
        ahead = self.inverse @ (self.rows.distribution @ state_values)
        return self.gamma * (self.rows.out[self.unseen] @ ahead)  # type: ignore[no-any-return]

    @property
    def out(self) -> Floats:
        """Share of every row that falls back to each hub, now or after visits to leaks."""
        return self.rows.out + self.gamma * (self.rows.apply(self.onward) @ self.inverse)

    @property
    def held_in_all(self) -> Floats:
        """Mass that leaks hold for each unit that arrives in a state, then and after later restarts."""
        onward = self.gamma * (self.onward @ (self.inverse @ (self.rows.distribution @ self.held)))
        return self.held + onward

    @property
    def continuation(self) -> Floats:
        """Mass that goes on to every state for each unit that enters a leak; all leaks go on alike."""
        first = int(np.argmax(self.unseen))
        return self.gamma * (self.rows.out[first] @ self.inverse @ self.rows.distribution)
