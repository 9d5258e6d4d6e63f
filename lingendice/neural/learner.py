"""One pair of networks in training: plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.neural.objective import Objective
from lingendice.neural.options import NeuralOptions
from lingendice.neural.samples import Samples


def init_layers(sizes, rng, bias):
    layers = []
    for rows, columns in zip(sizes[:-1], sizes[1:], strict=True):
        limit = math.sqrt(6.0 / (rows + columns))
        layers.append([rng.uniform(-limit, limit, (rows, columns)).astype(np.float32), np.zeros(columns, np.float32)])
    layers[-1][1][:] = bias
    return layers


def forward(layers, x):
    hs = [x]
    for w, b in layers[:-1]:
        hs.append(np.tanh(hs[-1] @ w + b))
    return hs, (hs[-1] @ layers[-1][0] + layers[-1][1])[:, 0]


def backward(layers, hs, g):
    g = g[:, None].astype(np.float32)
    grads = []
    for k in range(len(layers) - 1, -1, -1):
        grads.append([hs[k].T @ g, g.sum(axis=0)])
        if k:
            g = (g @ layers[k][0].T) * (1 - hs[k] ** 2)
    return grads[::-1]


class Learner:
    """Parameters of tau, f and u, and the steps that train them."""

    def __init__(self, samples: Samples, objective: Objective, options: NeuralOptions, steps: int, seed: int):
        self.samples, self.objective, self.options, self.steps = samples, objective, options, steps
        self.rng = np.random.default_rng(seed)
        sizes = (samples.n_inputs, *options.hidden, 1)
        start = {"square": 1.0, "softplus": 0.5413, "exp": 0.0, "identity": 1.0}[options.output]
        self.tau_net = init_layers(sizes, self.rng, start)
        self.f_net = init_layers(sizes, self.rng, 0.0)
        self.u = 0.0
        self.step = 0
        self.flat = [a for layer in self.tau_net + self.f_net for a in layer]
        self.m = [np.zeros_like(a) for a in self.flat]
        self.v = [np.zeros_like(a) for a in self.flat]
        self.mu = self.vu = 0.0
        self.mean_tau = [[a.copy() for a in layer] for layer in self.tau_net]
        self.averaged = 0

    def _arrive(self, arrivals, rows):
        """(rows * branches, d) inputs and (rows, branches) weights."""
        s = self.samples
        states = arrivals.states[rows]
        if s.kind == "none":
            return states, None
        if s.kind == "discrete":
            a = s.n_actions_in
            x = np.hstack([np.repeat(states, a, axis=0), np.tile(np.eye(a, dtype=np.float32), (len(rows), 1))])
            return x, arrivals.action[rows]
        if s.kind == "gaussian":
            std, low, high = s.noise
            mean = arrivals.action[rows]
            act = np.clip(mean + std * self.rng.standard_normal(mean.shape, dtype=np.float32), low, high)
        else:
            act = s.draw(arrivals, rows, self.rng)
        return np.hstack([states, act]), None

    def _sum(self, f, w):
        return f if w is None else (f.reshape(w.shape) * w).sum(axis=1)

    def _spread(self, g, w):
        return g if w is None else (g[:, None] * w).ravel()

    def _dual(self, y):
        o = self.objective
        if math.isfinite(o.limit):
            a = math.log(math.expm1(o.limit))
            return o.limit - np.logaddexp(0, a - y), 1 / (1 + np.exp(y - a))
        if math.isfinite(o.bound):
            t = np.tanh(y / o.bound)
            return o.bound * t, 1 - t * t
        return y, np.ones_like(y)

    def _out(self, z):
        kind = self.objective.output
        if kind == "square":
            return z * z, 2 * z
        if kind == "softplus":
            return np.logaddexp(0, z), 1 / (1 + np.exp(-z))
        if kind == "exp":
            e = np.exp(np.minimum(z, 20))
            return e, e
        return z, np.ones_like(z)

    def advance(self, n: int) -> None:
        for _ in range(n):
            self._one()

    def _one(self) -> None:
        s, o, opt = self.samples, self.objective, self.options
        b = opt.batch
        rows = self.rng.integers(0, len(s.logged), b)
        x = s.logged[rows]
        xn, wn = self._arrive(s.following, rows)
        nb = s.n_branches
        x0 = w0 = None
        if s.starting is not None:
            rows0 = self.rng.integers(0, len(s.starting.states), b)
            x0, w0 = self._arrive(s.starting, rows0)
            back = s.restarted[rows]
            if back.any():
                r0 = self.rng.integers(0, len(s.starting.states), int(back.sum()))
                xr, wr = self._arrive(s.starting, r0)
                xn.reshape(b, nb, -1)[back] = xr.reshape(len(r0), nb, -1)
                if wn is not None:
                    wn[back] = wr
        hs, z = forward(self.tau_net, x)
        tau, dtau = self._out(z.astype(float))
        nu = s.mass_weight[rows]
        f_hs, y = forward(self.f_net, x)
        n_hs, yn = forward(self.f_net, xn)
        f, df = self._dual(y.astype(float))
        fn, dfn = self._dual(yn.astype(float))
        keep = ~s.absorbed[rows]
        fnext = self._sum(fn, wn) * keep
        pairs = [excess_and_slope(o.code, float(v)) for v in f]
        exc, slope = (np.array(c) for c in zip(*pairs, strict=True))
        c = tau if o.by_ratio else np.ones(b)
        gz = dtau * (o.gamma * fnext - f - exc * o.by_ratio + o.penalty * self.u * nu + o.ridge * (tau - o.centre)) / b
        grads_f = backward(self.f_net, f_hs, -(tau + c * slope) * df / b)
        add = backward(self.f_net, n_hs, self._spread(o.gamma * tau * keep / b, wn) * dfn)
        grads_f = [[p + q for p, q in zip(l1, l2, strict=True)] for l1, l2 in zip(grads_f, add, strict=True)]
        if o.gamma < 1:
            hs0, y0 = forward(self.f_net, x0)
            _, df0 = self._dual(y0.astype(float))
            add = backward(self.f_net, hs0, self._spread(np.full(b, (1 - o.gamma) / b), w0) * df0)
            grads_f = [[p + q for p, q in zip(l1, l2, strict=True)] for l1, l2 in zip(grads_f, add, strict=True)]
        grads_t = backward(self.tau_net, hs, gz)
        self._adam(grads_t, grads_f, float(np.mean(nu * tau)))

    def _adam(self, grads_t, grads_f, mean):
        opt, o = self.options, self.objective
        self.step += 1
        t = self.step
        rate = 0.5 * (1 + math.cos(math.pi * min(1, (t - 1) / self.steps))) if opt.decay else 1.0
        lr_t = opt.learning_rate * rate
        lr_f = (opt.dual_learning_rate or opt.learning_rate) * rate
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        k = 0
        for grads, lr in ((grads_t, -lr_t), (grads_f, lr_f)):
            norm = math.sqrt(sum(float((a.astype(float) ** 2).sum()) for layer in grads for a in layer))
            scale = min(1.0, opt.clip / max(norm, 1e-30))
            for layer in grads:
                for g in layer:
                    g = g * np.float32(scale)
                    self.m[k] += 0.1 * (g - self.m[k])
                    self.v[k] += 0.001 * (g * g - self.v[k])
                    self.flat[k] += np.float32(lr / c1) * self.m[k] / (np.sqrt(self.v[k] / c2) + 1e-8)
                    k += 1
        gu = o.penalty * (mean - 1 - self.u)
        self.mu += 0.1 * (gu - self.mu)
        self.vu += 0.001 * (gu * gu - self.vu)
        self.u += lr_f * (self.mu / c1) / (math.sqrt(self.vu / c2) + 1e-8)
        if t > self.steps * (1 - opt.average) and opt.average > 0:
            self.averaged += 1
            for layer, mean_layer in zip(self.tau_net, self.mean_tau, strict=True):
                for a, b in zip(layer, mean_layer, strict=True):
                    b += (a - b) / np.float32(self.averaged)

    def tau(self, inputs) -> Any:
        net = self.mean_tau if self.averaged else self.tau_net
        return self._out(forward(net, inputs)[1].astype(float))[0]

    def residual(self, held: Samples) -> float:
        return math.nan
