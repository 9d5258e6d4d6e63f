"""Primal-dual steps and convex problems as users of JAX, PyTorch and cvxpy write them, for test_linear.py.

Each function returns a task without arguments, compiled and warm. Peers are given their samples beforehand;
our steps include the sampling.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.spatial import cKDTree

from lingendice.data.counts import Counts
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import Flow
from lingendice.solvers.problem import RatioProblem
from lingendice.solvers.sgd import _Runner, _State, bounded_for_sgd, step_sizes

CELLS, GAMMA = 12_000, 0.95


def random_walk(n_cells: int, seed: int = 0) -> tuple[Flow, np.ndarray]:
    """Points in a square, each stepping to eight cells near where a drift would take it."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, (n_cells, 2))
    target = np.clip(0.9 * points + np.array([0.03, -0.02]), -1, 1)
    _, near = cKDTree(points).query(target, k=8)
    counts = rng.poisson(3, near.shape) + (np.arange(8) == 0)
    indptr = np.arange(0, near.size + 1, 8)
    matrix = sparse.csr_array((counts.ravel(), near.ravel(), indptr), shape=(n_cells, n_cells))
    operator = compose(Counts.from_matrix(matrix), Choices(gamma=GAMMA))
    return operator.flow(closed=False), points


def sampled(flow: Flow, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, x', x0) drawn beforehand: the peers are spared the sampling that our steps include."""
    rng = np.random.default_rng(seed)
    rows = flow.rows
    source = np.repeat(np.arange(flow.n_cells), np.diff(rows.indptr))
    entry = rng.choice(source.size, n, p=rows.weight / rows.weight.sum())
    return source[entry], rows.indices[entry].astype(np.int64), rng.integers(0, flow.n_cells, n)


def our_sgd(problem: RatioProblem, batch: int, n: int):
    problem = bounded_for_sgd(problem)
    runner = _Runner(problem, step_sizes(problem), batch, 1.0)
    state = _State(problem, 0, None)
    runner.run(state, 0, 10, n)

    def task() -> None:
        state.reset()
        runner.run(state, 0, n, n)

    return task


def touched_cells(problem: RatioProblem, n: int):
    """The floor of a tabular step on this machine: its random reads and writes, and no arithmetic, averages
    or projections: one event, the start table, and a line of three cells."""
    from numba import njit

    from lingendice.kernels.random_numbers import draw, draw_event, mix
    from lingendice.solvers.sgd import build_sampler, rows_by_cache_line

    source = build_sampler(problem.flow).source
    cells = rows_by_cache_line(problem.flow.n_cells, 8)

    @njit(error_model="numpy")
    def touch(counter, n, events, threshold, alias, cells):  # type: ignore[no-untyped-def]
        at = np.empty((32, 3), np.int64)
        for _ in range(0, n, 32):
            for k in range(32):
                x, y = draw_event(mix(counter), events)
                z = draw(mix(counter + np.uint64(1)), threshold, alias, 0, threshold.size)
                counter += np.uint64(0x9E3779B97F4A7C15)
                at[k, 0], at[k, 1], at[k, 2] = x, y, z
            for k in range(32):
                for c in range(3):
                    cells[at[k, c], 4] += 1.0
                cells[at[k, 0], 0] += 1.0

    given = (n, source.events, source.starts[0], source.starts[1], cells)
    touch(np.uint64(1), *given)
    return lambda: touch(np.uint64(1), *given)


def touched_rows(problem: RatioProblem, batch: int, n: int):
    """The floor of a minibatch step on one core: an entry of each cache line of psi(x), phi(x), phi(x') for
    samples drawn beforehand, and no other arithmetic."""
    from numba import njit

    runner = _Runner(problem, step_sizes(bounded_for_sgd(problem)), batch, 1.0)
    x, following, _ = sampled(problem.flow, n * batch, 1)

    @njit(error_model="numpy")
    def touch(psi, phi, x, following):  # type: ignore[no-untyped-def]
        total = 0.0
        for k in range(x.size):
            for j in range(0, psi.shape[1], 8):
                total += psi[x[k], j] + phi[x[k], j] + phi[following[k], j]
        return total

    touch(runner.psi, runner.phi, x, following)
    return lambda: touch(runner.psi, runner.phi, x, following)


def jax_tabular_plain(flow: Flow, n: int):
    """As a user of JAX writes it first: arrays in the carry, functional updates, sums of the iterates."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    samples = tuple(map(jnp.asarray, sampled(flow, n, 1)))

    def step(carry, sample):
        tau, f, u, tau_sum, f_sum = carry
        x, y, z = sample
        to_tau = GAMMA * f[y] - f[x] - 0.25 * f[x] ** 2 + u
        moved = f.at[x].add(-1e-3 * tau[x] * (1 + 0.5 * f[x])).at[y].add(1e-3 * GAMMA * tau[x])
        moved = moved.at[z].add(1e-3 * (1 - GAMMA))
        met = jnp.stack([x, y, z])
        moved = moved.at[met].set(jnp.clip(moved[met], -2.0, 2.0))
        new = tau.at[x].set(jnp.clip(tau[x] - 1e-3 * to_tau, 0.0, 10.0))
        u_new = jnp.clip(u + 1e-3 * (tau[x] - 1.0 - u), -10.0, 10.0)
        return (new, moved, u_new, tau_sum + tau, f_sum + f), None

    zeros = jnp.zeros(CELLS)
    start = (zeros + 1.0, zeros, jnp.array(0.0), zeros, zeros)
    scan = jax.jit(lambda carry, samples: jax.lax.scan(step, carry, samples)[0])
    jax.block_until_ready(scan(start, samples))
    return lambda: jax.block_until_ready(scan(start, samples))


def jax_tabular(flow: Flow, n: int):
    """One gather and one scatter per step, so that XLA updates in place; no averages and no projection."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    samples = tuple(map(jnp.asarray, sampled(flow, n, 1)))

    def step(state, sample):
        x, y, z = sample
        at = jnp.stack([x, CELLS + x, CELLS + y, CELLS + z, jnp.full_like(x, 2 * CELLS)])
        tau, f, f_next, _, u = state[at]
        change = jnp.stack(
            [
                -(GAMMA * f_next - f - 0.25 * f * f + u),
                -tau * (1 + 0.5 * f),
                GAMMA * tau,
                jnp.full_like(tau, 1 - GAMMA),
                tau - 1.0 - u,
            ]
        )
        return state.at[at].add(1e-3 * change), None

    start = jnp.concatenate([jnp.ones(CELLS), jnp.zeros(CELLS + 1)])
    scan = jax.jit(lambda state, samples: jax.lax.scan(step, state, samples)[0])
    jax.block_until_ready(scan(start, samples))
    return lambda: jax.block_until_ready(scan(start, samples))


def jax_tabular_averaged(flow: Flow, n: int):
    """With the projection and the averages that our steps include, in the fastest of the forms tried.

    The average of a coordinate over T steps is its last value less sum (t + 1) change / T, so that one array
    of weighted changes beside the values will do. A loop of at most eight XLA kernels (six here: indices and
    times are laid out beforehand) takes some 15 ns for each; one of ten or more takes 0.7 us per step, and
    3.5 us with an array above 512 kB. Updates of single entries (``.at[i].set``) copy the arrays (50 us).
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    x, y, z = sampled(flow, n, 1)
    block = 2 * CELLS + 1
    at = np.column_stack([x, CELLS + x, CELLS + y, CELLS + z, np.full(n, 2 * CELLS)])
    samples = jnp.asarray(np.hstack([at, block + at]).astype(np.int32)), jnp.arange(1.0, n + 1.0)
    low = jnp.array([0.0, -2.0, -2.0, -2.0, -10.0])
    high = jnp.array([10.0, 2.0, 2.0, 2.0, 10.0])

    def step(state, sample):
        at, t = sample
        value = state[at[:5]]
        tau, f, f_next, _, u = value
        change = jnp.stack(
            [
                -(GAMMA * f_next - f - 0.25 * f * f + u),
                -tau * (1 + 0.5 * f),
                GAMMA * tau,
                jnp.full_like(tau, 1 - GAMMA),
                tau - 1.0 - u,
            ]
        )
        moved = jnp.clip(value + 1e-3 * change, low, high) - value
        return state.at[at].add(jnp.concatenate([moved, t * moved])), None

    start = jnp.concatenate([jnp.ones(CELLS), jnp.zeros(2 * block - CELLS)])
    scan = jax.jit(lambda state, samples: jax.lax.scan(step, state, samples)[0])
    jax.block_until_ready(scan(start, samples))
    return lambda: jax.block_until_ready(scan(start, samples))


def torch_tabular(flow: Flow, n: int):
    import torch

    torch.set_num_threads(1)
    xs, ys, zs = (column.tolist() for column in sampled(flow, n, 1))

    def task() -> None:
        tau = torch.ones(CELLS, dtype=torch.float64, requires_grad=True)
        f = torch.zeros(CELLS, dtype=torch.float64, requires_grad=True)
        u = torch.zeros((), dtype=torch.float64, requires_grad=True)
        down, up = torch.optim.SGD([tau], lr=1e-3), torch.optim.SGD([f, u], lr=1e-3, maximize=True)
        for x, y, z in zip(xs, ys, zs, strict=True):
            down.zero_grad()
            up.zero_grad()
            value = (1 - GAMMA) * f[z] + GAMMA * tau[x] * f[y] - tau[x] * (f[x] + 0.25 * f[x] ** 2)
            (value + u * (tau[x] - 1) - 0.5 * u**2).backward()
            down.step()
            up.step()
            with torch.no_grad():
                tau.clamp_(0.0, 10.0)
                f.clamp_(-2.0, 2.0)

    return task


def torch_tabular_by_hand(flow: Flow, n: int):
    """Without autograd: in-place updates of single entries, the least that PyTorch can do."""
    import torch

    torch.set_num_threads(1)
    xs, ys, zs = (column.tolist() for column in sampled(flow, n, 1))

    def task() -> None:
        tau, f, u = torch.ones(CELLS, dtype=torch.float64), torch.zeros(CELLS, dtype=torch.float64), 0.0
        for x, y, z in zip(xs, ys, zs, strict=True):
            a, b = tau[x].item(), f[x].item()
            to_tau = GAMMA * f[y].item() - b - 0.25 * b * b + u
            f[x] -= 1e-3 * a * (1 + 0.5 * b)
            f[y] += 1e-3 * GAMMA * a
            f[z] += 1e-3 * (1 - GAMMA)
            tau[x] = min(max(a - 1e-3 * to_tau, 0.0), 10.0)
            u += 1e-3 * (a - 1.0 - u)

    return task


def jax_minibatch(flow: Flow, psi: np.ndarray, phi: np.ndarray, batch: int, n: int, draws_start: bool):
    """The same algorithm with averages and projections; the term of mu0 drawn, or exact as ours."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    samples = tuple(jnp.asarray(column.reshape(n, batch)) for column in sampled(flow, n * batch, 1))
    exact = jnp.asarray(phi.T @ flow.start)
    psi, phi = jnp.asarray(psi), jnp.asarray(phi)

    def step(carry, sample):
        w, v, u, w_sum, v_sum = carry
        x, y, z = sample
        rows, here, there = psi[x], phi[x], phi[y]
        start = (1 - GAMMA) * phi[z].mean(0) if draws_start else exact
        tau, f, f_next = rows @ w, here @ v, there @ v
        to_tau = GAMMA * f_next - f - 0.25 * f * f + u
        to_w = to_tau @ rows / batch
        to_v = (GAMMA * tau @ there - (tau * (1 + 0.5 * f)) @ here) / batch + start
        w_new = jnp.clip(w - 1e-4 * to_w, 0.0, 10.0)
        v_new = jnp.clip(v + 1e-4 * to_v, -2.0, 2.0)
        u_new = u + 1e-4 * (tau.mean() - 1.0 - u)
        return (w_new, v_new, u_new, w_sum + w, v_sum + v), None

    zeros = jnp.zeros(psi.shape[1])
    start = (zeros + 0.1, jnp.zeros(phi.shape[1]), jnp.array(0.0), zeros, jnp.zeros(phi.shape[1]))
    scan = jax.jit(lambda carry, samples: jax.lax.scan(step, carry, samples)[0])
    jax.block_until_ready(scan(start, samples))
    return lambda: jax.block_until_ready(scan(start, samples))


def cvxpy_cones(problem: RatioProblem):
    """The same problem as cones: min sum zeta^2 / m with Phi' zeta = Phi' (q - m), one cone per cell."""
    import cvxpy as cp

    mass = problem.features.scaled(problem.flow.p)
    phi = problem.dual_features.matrix
    on_w = phi.T @ (problem.flow.apply_transpose(mass) - mass)
    w, zeta, cost = (
        cp.Variable(mass.shape[1], nonneg=True),
        cp.Variable(mass.shape[0]),
        cp.Variable(mass.shape[0]),
    )
    m = mass @ w
    # zeta^2 <= cost m, one cone per cell.
    cone = cp.SOC(cost + m, cp.vstack([2 * zeta, cost - m]), axis=0)
    goal = cp.sum(cost) + 0.5 * problem.penalty * cp.square(problem.mass_row @ w - 1)
    program = cp.Problem(cp.Minimize(goal), [cone, phi.T @ zeta == phi.T @ problem.flow.start + on_w @ w])

    def task() -> float:
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-6, tol_gap_rel=1e-6, tol_feas=1e-6)
        return float(program.value)

    return task


def cvxpy_matrix(problem: RatioProblem):
    """The same problem with the inner maximum in closed form: matrix_frac, one semidefinite cone."""
    import cvxpy as cp

    def task() -> float:
        program = _matrix_program(problem)
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-6, tol_gap_rel=1e-6, tol_feas=1e-6)
        return float(program.value)

    return task


def _matrix_program(problem: RatioProblem):
    import cvxpy as cp

    mass = problem.features.scaled(problem.flow.p)
    phi = problem.dual_features.matrix
    d = phi.shape[1]
    on_w = phi.T @ (problem.flow.apply_transpose(mass) - mass)
    pieces = np.stack([(phi.T * mass[:, j]) @ phi for j in range(mass.shape[1])], axis=-1).reshape(d * d, -1)
    w = cp.Variable(mass.shape[1], nonneg=True)
    h = cp.reshape(pieces @ w, (d, d), order="C")
    goal = cp.matrix_frac(phi.T @ problem.flow.start + on_w @ w, (h + h.T) / 2)
    goal = goal + 0.5 * problem.penalty * cp.square(problem.mass_row @ w - 1)
    return cp.Problem(cp.Minimize(goal))
