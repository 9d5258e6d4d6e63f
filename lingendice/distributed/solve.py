"""The door to solving on a cluster."""

from __future__ import annotations

from typing import Any

from lingendice.distributed.counts import DistributedCounts


def solve(data: Any, gamma: float = 1.0, *, client: Any = None, **arguments: Any) -> Any:
    """Solve ``mu = (1 - gamma) mu0 + gamma T' mu`` with the rows of T on the workers of a Dask cluster.

    Parameters
    ----------
    data
        What :func:`lingendice.distributed.count` returns; or :class:`Counts`, a matrix or a graph, which is
        spread first.
    client
        A ``dask.distributed.Client``; None takes the current one. For data to be spread alone.
    gamma, **arguments
        Those of :func:`lingendice.solve`, with the same checks. The exact equation is solved: a policy is
        followed as it is (``ridge=0``); features, ridges and divergences are for one machine.

    Returns
    -------
    Solution
        The ordinary one. At gamma < 1 its error is a proven bound of the L1 error; at gamma = 1 an estimate
        of the largest relative error of an entry, confirmed by the chain between clusters of states.

    Notes
    -----
    One round takes one pass over the entries, side by side, and one message from every part to every other: a
    number for each state that it leads to. Memory of the client: vectors over states and cells. Where a
    worker is lost, its blocks are counted or read again and the rounds are repeated.

    Examples
    --------
    >>> counts = lg.distributed.count("log/*.parquet", client)          # doctest: +SKIP
    >>> sol = lg.distributed.solve(counts, gamma=0.99, policy=pi)        # doctest: +SKIP
    """
    import lingendice

    if not isinstance(data, DistributedCounts):
        data = DistributedCounts.from_counts(data, client)
    return lingendice.solve(data, gamma, **arguments)
