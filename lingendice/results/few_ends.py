"""Few episodes that end: the length of an episode is then the noisy number, and is shrunk.

A return is reward per step times length, and the length of an episode of the target rests on the ends that
were logged. A prior of a few ends anywhere in the log (``shrink(added_ends=...)``) takes noise away and
brings bias. With R0 and Rc the returns without and with c added ends, i0 and ic their influence rows,

    w = i0 . (i0 - ic) / (R0 - Rc)^2 , within [0, 1],

is the share of the change R0 - Rc that is noise saved rather than bias brought; w c ends are added. The prior
fades as ends grow, and is gone at `ENOUGH_ENDS`.

A log of N steps shows nothing of episodes as long as N: where the target's would be, the estimate has the
target turn back at the edge of the log, and ends are added for that, too, with all that they change allowed
for as bias.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lingendice.data.counts import Counts
from lingendice.model.compose import Choices
from lingendice.results.allowance import influence_rows
from lingendice.solvers.control import Controls
from lingendice.solvers.shrinkage import Shrinkage, shrink

ADDED_ENDS = 3.0
"""The prior, in ends of episodes, before it is weighed."""
ENOUGH_ENDS = 1000.0
"""Logged ends from which on nothing is added: three more would move a return by a tenth of its noise."""
LONG_SHARE, TOO_LONG = 0.1, 0.5
"""Lengths of an episode, as shares of the log, between which the weight of the prior grows from 0 to 1."""
WORTH_A_FIT = 0.01


def shrink_with_few_ends(counts: Counts, choices: Choices, controls: Controls) -> Shrinkage:
    """The estimate, with ends added where the log shows few; two more fits there, none elsewhere."""
    plain = shrink(counts, choices, controls)
    if plain.length is None or not math.isfinite(plain.value):
        return plain
    most = ADDED_ENDS * max(1.0 - float(counts.terminal_count.sum()) / ENOUGH_ENDS, 0.0)
    long = (plain.length / float(counts.total) - LONG_SHARE) / (TOO_LONG - LONG_SHARE)
    long = min(max(long, 0.0), 1.0)
    if most == 0.0 and long == 0.0:
        return plain
    noise = _share_of_noise(plain, shrink(counts, choices, controls, most)) if most else 0.0
    added = max(noise * most, long * ADDED_ENDS)
    if added < WORTH_A_FIT * ADDED_ENDS:
        return plain
    fit = shrink(counts, choices, controls, added)
    change = abs(_return(plain) - _return(fit)) / _steps(fit)
    rows = influence_rows(fit)
    allowed = math.sqrt(float(rows @ rows))
    if long * ADDED_ENDS > noise * most:
        allowed = max(allowed, abs(fit.value))
    return replace(fit, ridge_error=min(change, allowed))


def _share_of_noise(plain: Shrinkage, shrunk: Shrinkage) -> float:
    """w of the module: how much of the change is noise saved."""
    own, other = influence_rows(plain) * _steps(plain), influence_rows(shrunk) * _steps(shrunk)
    change = _return(plain) - _return(shrunk)
    if own.size != other.size or change == 0.0:
        return 0.0
    return min(max(float(own @ own - own @ other) / change**2, 0.0), 1.0)


def _steps(fit: Shrinkage) -> float:
    assert fit.steps is not None
    return fit.steps


def _return(fit: Shrinkage) -> float:
    return fit.value * _steps(fit)
