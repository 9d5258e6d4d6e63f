"""GenDICE's training step as JAX and PyTorch users would write it: the same nets, batch, Adam and clipping.

Each peer trains two networks of two 64-unit tanh layers on batches of 2048: gather, fresh Gaussian actions at
s' and s0, forward and backward of tau and f (f on one stacked batch), clipping by norm, Adam, u.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WIDTH, BATCH = 64, 2048
GAMMA, PENALTY, RATE, CLIP = 0.99, 1.0, 1e-3, 1.0


class Problem(NamedTuple):
    """Standardized logged inputs, next states with mean actions, initial states with mean actions."""

    logged: np.ndarray
    following: np.ndarray
    starting: np.ndarray
    n_states: int
    std: float

    @property
    def n_inputs(self) -> int:
        return self.logged.shape[1]


def problem(n_states: int, n_actions: int, rows: int = 100_000, firsts: int = 10_000) -> Problem:
    rng = np.random.default_rng(0)
    d = n_states + n_actions
    logged = rng.standard_normal((rows, d), dtype=np.float32)
    following = (0.9 * logged + 0.3 * rng.standard_normal((rows, d), dtype=np.float32)).astype(np.float32)
    starting = (0.5 * rng.standard_normal((firsts, d), dtype=np.float32)).astype(np.float32)
    return Problem(logged, following, starting, n_states, 0.3)


def initial_networks(d: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(3)
    nets = []
    for bias in (1.0, 0.0):
        layers = []
        for rows, columns in ((d, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)):
            limit = np.sqrt(6.0 / (rows + columns))
            layers.append(rng.uniform(-limit, limit, (rows, columns)).astype(np.float32))
            layers.append(np.full(columns, bias * (columns == 1), dtype=np.float32))
        nets.append(layers)
    return nets


def flops(d: int) -> float:
    """Multiplications and additions of the matrix products of one step, backward included."""
    forward = 2 * (d * WIDTH + WIDTH * WIDTH + WIDTH)
    backward = forward + 2 * (WIDTH * WIDTH + WIDTH)
    return 4.0 * BATCH * (forward + backward)


class JaxTrainer:
    """jit and scan over the steps; the fastest of JAX's generators for CPU."""

    def __init__(self, data: Problem) -> None:
        import jax
        import jax.numpy as jnp

        # Other benchmarks of the same process ask for float64, which would slow this one down.
        jax.config.update("jax_enable_x64", False)
        logged, following, starting = (jnp.asarray(part) for part in data[:3])
        n_states, n_actions = data.n_states, data.n_inputs - data.n_states

        def net(p, x):
            return (jnp.tanh(jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3]) @ p[4])[:, 0] + p[5][0]

        def arrive(points, noise):
            return jnp.concatenate((points[:, :n_states], points[:, n_states:] + data.std * noise), axis=1)

        def objective(p, x, xn, x0):
            tau = net(p["tau"], x) ** 2
            f = net(p["f"], jnp.concatenate((x, xn, x0)))
            fs, fn, f0 = f[:BATCH], f[BATCH : 2 * BATCH], f[2 * BATCH :]
            u = p["u"]
            return (
                (1 - GAMMA) * f0.mean() + GAMMA * (tau * fn).mean() - (tau * (fs + 0.25 * fs * fs)).mean()
                + PENALTY * (u * tau.mean() - u - 0.5 * u * u)
            )  # fmt: skip

        sign = {"tau": -1.0, "f": 1.0, "u": 1.0}
        tree = jax.tree_util.tree_map

        def clipped(grads):
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads))
            return [g * jnp.minimum(1.0, CLIP / (norm + 1e-30)) for g in grads]

        def step(state, _):
            p, m, v, t, key = state
            key, rows_key, first_key, noise_key = jax.random.split(key, 4)
            rows = jax.random.randint(rows_key, (BATCH,), 0, len(logged))
            firsts = jax.random.randint(first_key, (BATCH,), 0, len(starting))
            noise = jax.random.normal(noise_key, (2, BATCH, n_actions))
            g = jax.grad(objective)(
                p, logged[rows], arrive(following[rows], noise[0]), arrive(starting[firsts], noise[1])
            )
            g = {"tau": clipped(g["tau"]), "f": clipped(g["f"]), "u": g["u"]}
            t = t + 1.0
            m = tree(lambda a, b: 0.9 * a + 0.1 * b, m, g)
            v = tree(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
            early, late = 1 - 0.9**t, 1 - 0.999**t
            moved = {}
            for k, up in sign.items():
                scale = up * RATE
                moved[k] = tree(
                    lambda w, a, b, scale=scale: w + scale * (a / early) / (jnp.sqrt(b / late) + 1e-8),
                    p[k],
                    m[k],
                    v[k],
                )
            return (moved, m, v, t, key), None

        tau, f = initial_networks(data.n_inputs)
        p = {"tau": [jnp.asarray(a) for a in tau], "f": [jnp.asarray(a) for a in f], "u": jnp.float32(0.0)}
        zero = tree(jnp.zeros_like, p)
        self._state = (
            p,
            zero,
            tree(jnp.zeros_like, p),
            jnp.float32(0.0),
            jax.random.key(0, impl="unsafe_rbg"),
        )
        self._run = jax.jit(lambda state, n: jax.lax.scan(step, state, None, length=n)[0], static_argnums=1)
        self._wait = jax.block_until_ready

    def run(self, steps: int) -> None:
        self._state = self._wait(self._run(self._state, steps))


class TorchTrainer:
    """Eager PyTorch with fused Adam."""

    def __init__(self, data: Problem) -> None:
        import torch

        self._torch = torch
        self._logged, self._following, self._starting = (torch.from_numpy(part) for part in data[:3])
        self._n_states, self._std = data.n_states, data.std
        tau, f = initial_networks(data.n_inputs)
        self._tau, self._f = (
            [torch.nn.Parameter(torch.from_numpy(a.copy())) for a in net] for net in (tau, f)
        )
        self._u = torch.nn.Parameter(torch.zeros(()))
        groups = [
            {"params": self._tau, "maximize": False},
            {"params": [*self._f, self._u], "maximize": True},
        ]
        self._adam = torch.optim.Adam(groups, lr=RATE, fused=True)

    def _net(self, p, x):
        torch = self._torch
        h = torch.tanh(torch.addmm(p[1], x, p[0]))
        h = torch.tanh(torch.addmm(p[3], h, p[2]))
        return torch.addmm(p[5], h, p[4])[:, 0]

    def _arrive(self, points):
        noise = self._torch.randn(len(points), points.shape[1] - self._n_states)
        points[:, self._n_states :].add_(noise, alpha=self._std)
        return points

    def run(self, steps: int) -> None:
        torch = self._torch
        for _ in range(steps):
            rows = torch.randint(len(self._logged), (BATCH,))
            firsts = torch.randint(len(self._starting), (BATCH,))
            x = self._logged.index_select(0, rows)
            xn = self._arrive(self._following.index_select(0, rows))
            x0 = self._arrive(self._starting.index_select(0, firsts))
            tau = self._net(self._tau, x).square()
            f = self._net(self._f, torch.cat((x, xn, x0)))
            fs, fn, f0 = f[:BATCH], f[BATCH : 2 * BATCH], f[2 * BATCH :]
            u = self._u
            value = (
                (1 - GAMMA) * f0.mean() + GAMMA * (tau * fn).mean() - (tau * (fs + 0.25 * fs * fs)).mean()
                + PENALTY * (u * tau.mean() - u - 0.5 * u * u)
            )  # fmt: skip
            value.backward()
            torch.nn.utils.clip_grad_norm_(self._tau, CLIP)
            torch.nn.utils.clip_grad_norm_(self._f, CLIP)
            self._adam.step()
            self._adam.zero_grad(set_to_none=True)
