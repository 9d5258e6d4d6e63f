"""Small exercises of every kernel with known answers, for a library given on the command line.

Run in a process of its own, because sanitizers must be loaded before the interpreter. Prints one line an
exercise: its name, then "ok", "value" (a wrong answer) or "misuse" (what the emulator complained about).
"""

from __future__ import annotations

import sys
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from emulator.device import EmulatedDevice, EmulatorError
from lingendice.gpu import equation as pull
from lingendice.gpu.catalog import DEPTH, c_type
from lingendice.gpu.device import for_each, launch
from lingendice.gpu.equation import CHECKED, HUBS, SCRATCH, SLOTS, STEPPED, Equation

pull.FEW, pull.SOME, pull.MANY = 2, 10, 100  # small matrices then meet every kind of row
RNG = np.random.default_rng(0)


class Types(NamedTuple):
    """How vectors are stored, and how keys and places are numbered."""

    value: type = np.float64
    index: type = np.int64
    mixed: bool = False
    """Whether other types may meet these: a library of double precision alone has no kernels for that."""

    T = property(lambda self: (c_type(self.value),))
    I = property(lambda self: (c_type(self.index),))  # noqa: E741

    def close(self, one, other):
        """Equal up to rounding of what is stored: all numbers of the exercises are of order one."""
        rtol, atol = (1e-10, 1e-13) if self.value is np.float64 else (3e-5, 2e-5)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)

    def up(self, device):
        """Uploads vectors of numbers as they are stored."""
        return lambda array: device.upload(np.asarray(array).astype(self.value))


EVERY_TYPE = tuple(
    Types(*both, mixed=True) for both in product((np.float64, np.float32), (np.int64, np.int32))
)


def compressed(n, longest):
    """Rows of degree 0, 1, 2, ... and one of ``longest`` entries; dense, and as compressed rows."""
    degrees = np.arange(n) % 17
    degrees[n // 2] = longest
    columns = [RNG.integers(n, size=degree) for degree in degrees]
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    indices = np.concatenate(columns).astype(np.int32)
    data = RNG.random(indices.size)
    dense = np.zeros((n, n))
    np.add.at(dense, (np.repeat(np.arange(n), degrees), indices), data)
    return dense, indptr, indices, data


def operator(device, types):
    """One damped step with hubs, its residual and masses; then one without them."""
    n, gamma = 70, 0.8
    dense, indptr, indices, data = compressed(n, 330)
    up, close = types.up(device), types.close
    offsets = device.upload(indptr.astype(types.index))
    matrix = pull.resident_matrix(device, offsets, device.upload(indices), up(data))
    shares, distributions, start, x = RNG.random((2, n)), RNG.random((2, n)), RNG.random(n), RNG.random(n)
    equation = Equation(
        device, matrix, up(shares.ravel()), up(distributions.ravel()), 2, up(start), gamma, n, 0.0
    )
    distribution, out = up(x), device.empty(n, types.value)
    equation.weigh(distribution)
    equation.step(distribution, out, 0.5, STEPPED)
    stepped = start + gamma * (dense @ x + distributions.T @ (shares @ x))
    close(device.download(out), 0.5 * (x + stepped))
    scalars = device.download(equation.scalars)
    close(scalars[0], np.abs(stepped - x).sum())
    close(scalars[2], 0.5 * (x + stepped).sum())
    close(scalars[HUBS : HUBS + 2], shares @ (0.5 * (x + stepped)))
    equation.product(distribution, out, 1.0)
    close(device.download(out), stepped)
    equation.tol = 1e9
    equation.weigh(distribution)
    equation.step(distribution, out, 1.0, CHECKED)
    assert device.download(equation.done)[0] == 1
    out[:] = 7.0
    equation.step(distribution, out, 1.0, STEPPED)
    assert (device.download(out) == 7.0).all()  # once done, nothing moves


def extrapolation(device, types):
    """Iterates of a linear map with as many modes as steps: the mix is the fixed point."""
    depth, n = DEPTH, 150
    modes = RNG.standard_normal((depth - 1, n)) * 0.02
    rates = np.linspace(-0.6, 0.9, depth - 1)
    fixed = 1.0 + RNG.random(n)
    history = np.stack([fixed + (rates**k) @ modes for k in range(depth + 1)])
    up, close = types.up(device), types.close
    iterates, weights = up(history.ravel()), device.empty(depth, np.float64)
    parts, pairs, done = 2, depth * (depth + 1) // 2, device.zeros(1, np.int32)
    products, partials = device.empty(pairs * parts, np.float64), device.empty(SLOTS * parts, np.float64)
    size, blocks, text = np.int32(n), np.int32(parts), str(depth)
    launch(device, "change_products", (*types.T, text), parts, (size, iterates, done, products, blocks),
           shared_bytes=pairs * SCRATCH)  # fmt: skip
    launch(device, "mix_weights", (text,), 1, (blocks, products, done, weights), shared_bytes=pairs * 8)
    shares = up(np.ones(n))
    launch(device, "mix_iterates", (*types.T, text), parts,
           (size, weights, shares, np.int32(1), done, iterates, partials, blocks),
           shared_bytes=SLOTS * SCRATCH)  # fmt: skip
    mixed = device.download(iterates)[:n]
    # Modes that nearly coincide magnify the rounding of what is stored.
    np.testing.assert_allclose(mixed, fixed, rtol=1e-6 if types.value is np.float64 else 1e-2)
    close(device.download(partials).reshape(SLOTS, parts)[2].sum(), mixed.astype(float).sum())
    scalars = device.upload(np.array([0.0, 0.0, mixed.sum()]))
    distribution = iterates[:n].copy()
    for_each(device, "scale_distribution", types.T, n, (size, scalars, done, distribution))
    close(device.download(distribution).astype(float).sum(), 1.0)


def building(device, types):
    """Transposition, totals and composition."""
    n = 40
    dense, indptr, indices, data = compressed(n, 130)
    plain, up, close = device.upload, types.up(device), types.close
    indptr = indptr.astype(types.index)
    sources = plain(np.repeat(np.arange(n), np.diff(indptr)).astype(np.int32))
    columns = plain(indices.astype(types.index))
    for offset in (np.int32, np.int64):
        found = pull.transposed(device, columns, n, sources, up(data), offset)
        starts, places, rates = map(device.download, found)
        flipped = np.zeros((n, n))
        np.add.at(flipped, (np.repeat(np.arange(n), np.diff(starts)), places), rates)
        close(flipped, dense.T)
    close(device.download(pull.row_totals(device, plain(indptr), up(data))), dense.sum(axis=1))
    scale, policy = RNG.random(n), RNG.random(n)
    rows = np.repeat(np.arange(n), np.diff(indptr))
    whole = np.arange(data.size) % 7
    given = [
        (data.astype(types.value), data),
        (whole.astype(np.int32), whole),
        (whole.astype(np.int64), whole),
    ]
    if types.mixed:
        given += [(data.astype(np.float32), data), (data, data)]
    for weight, expected in given:
        around = (plain(weight), plain(scale), plain(policy), 4, np.dtype(types.value))
        sources, rates = pull.composed_rates(device, plain(indptr), *around)
        assert (device.download(sources) == rows // 4).all()
        np.testing.assert_allclose(device.download(rates), (policy * scale)[rows] * expected, rtol=3e-7)
        totals = pull.row_totals(device, plain(indptr), plain(weight))
        np.testing.assert_allclose(device.download(totals), np.bincount(rows, expected, n), rtol=3e-7)


def saddle(device, types):
    """Samples, their gradients, and the update of coordinates that many of them met."""
    _coordinates(device, types, absent=1)
    _coordinates(device, types, absent=0)
    _samples(device)
    _gradients(device, types)


def _coordinates(device, types, absent):
    """Last step of a chunk: many samples meet few coordinates; n_cells itself stands for an absent one."""
    n, batch, width, step = 9, 200 if absent else 256, 256, np.int32(2)
    up, close = device.upload, types.close
    store = types.up(device)
    met = RNG.integers(n + absent, size=3 * batch)
    from_ = np.where(met == n, -1, met).astype(np.int32)
    gradient, lengths, value, last = RNG.standard_normal(batch), RNG.random(n), RNG.random(n), RNG.random(n)
    low, high = np.full(n, 0.2), np.full(n, 0.9)
    sizes = (np.int64(3), np.int32(batch), np.int32(1), np.int32(width), np.int64(n))
    expected = np.sort(met.reshape(3, batch) << 32 | np.arange(batch), axis=1)
    for near in (0, 1):
        entries = device.empty(3 * width, np.uint64)
        for_each(device, "list_entries", (), 3 * width, (*sizes, *[up(from_)] * 3, entries))
        launch(device, "sort_segments", (), 2, (np.int32(3), np.int32(width), np.int32(near), entries),
               shared_bytes=8 * width * near)  # fmt: skip
        assert (device.download(entries).reshape(3, width)[:, :batch] == expected.astype(np.uint64)).all()
    u, parts = up(np.array([0.5, 2.0])), up(np.array([1.0, 2.0, 4.0]))
    for n_steps in (8.0, 7.0):
        late = n_steps == 7.0  # a step past the end of the epoch moves nothing
        clock = up(np.array([5.0, n_steps, 0.1]))
        held = [store(value), up(np.zeros(n)), up(last)]
        for_each(device, "update_coordinates", types.T, batch,
                 (step, np.int32(batch), np.int32(width), np.int64(n), entries, store(gradient),
                  np.float64(0.01), *map(store, (lengths, low, high)), clock, *held))  # fmt: skip
        total, moved = np.zeros(n + 1), np.zeros(n + 1, bool)
        np.add.at(total, met[2 * batch :], gradient)
        moved[met[2 * batch :]] = not late
        stepped = np.clip(value + 0.01 * lengths * total[:n], low, high)
        close(device.download(held[0]), np.where(moved[:n], stepped, value))
        close(device.download(held[1]), np.where(moved[:n], value * (7.0 - last), 0.0))
        multiplier = (step, np.int32(3), parts, np.float64(1.0), np.float64(1.0), clock, u)
        launch(device, "update_multiplier", (), 1, multiplier, block=1)
        close(device.download(u), [1.0, 2.5])
    counter = up(np.array([3], np.uint64))
    launch(device, "advance_clock", (), 1, (np.int32(4), np.int32(10), clock, counter), block=1)
    close(device.download(clock), [7.0, 7.0, 0.1])
    golden = 0x9E3779B97F4A7C15
    assert int(device.download(counter)[0]) == (3 + 240 * golden) % 2**64


def _samples(device):
    """Alias tables that hold every entry in place: draws are uniform, and what follows them is known."""
    n, n_states, actions, gamma, factor = 4000, 5, 2, 0.9, 0.5
    n_cells = n_states * actions
    event_x = np.array([1, 4, 7, 9], np.int32)
    event_next = np.array([3, -1, -2, 0], np.int32)  # a state, the end, a draw from distribution 0, a state
    p = np.full(n_cells, 0.1)
    p[6] = 0.0  # action 0 of state 3 leads elsewhere
    up = device.upload

    def table(rows, size):
        return up(np.ones(rows * size)), up(np.tile(np.arange(size, dtype=np.int32), rows))

    counter = up(np.array([77], np.uint64))
    from_, to, started = (device.empty(n, np.int32) for _ in range(3))
    discount = device.empty(n, np.float64)
    for_each(device, "draw_samples", (), n,
             (np.int64(n), counter, np.int64(4), *table(1, 4), up(event_x), up(event_next),
              np.int64(n_states), *table(1, n_states), np.int32(actions), *table(n_states, actions),
              np.int32(1), np.float64(factor), up(p), np.int64(n_cells), *table(1, n_cells), np.float64(0.1),
              *table(1, n_cells), np.float64(gamma), from_, to, started, discount))  # fmt: skip
    from_, to, started, discount = map(device.download, (from_, to, started, discount))
    share = np.array([(from_ == x).mean() for x in event_x])
    np.testing.assert_allclose(share, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / n))
    assert (to[from_ == 4] == -1).all()
    assert set(to[from_ == 9]) == {0, 1}
    first = from_ == 1
    redirected = first & (discount == gamma * factor)
    np.testing.assert_allclose(redirected.sum() / first.sum(), 0.5, atol=0.1)
    assert (to[first & ~redirected] == 7).all()
    assert set(to[redirected]) == set(to[from_ == 7]) | {6} == set(started) == set(range(n_cells))


def _gradients(device, types):
    """Gradients of the samples of a step, chi-square; a step past the end of the epoch writes nothing."""
    n, batch, parts, step = 20, 150, 3, 1
    up, store, close = device.upload, types.up(device), types.close
    tau, f, weight = RNG.random((3, n))
    from_, to = RNG.integers(n, size=2 * batch), RNG.integers(-1, n, size=2 * batch)
    discount, u, start_mass, penalty, offset, ridge = (
        RNG.random(2 * batch),
        0.3,
        0.1,
        1.5,
        0.2,
        0.4,
    )
    x, y, rate = from_[batch:], to[batch:], discount[batch:]
    ahead = np.where(y >= 0, rate * f[y], 0.0)
    on_tau = penalty * u * weight[x] - f[x] + ridge * (tau[x] - 1.0) + ahead - 0.25 * f[x] ** 2
    on_f = np.stack([-tau[x] - 0.5 * tau[x] * f[x], np.where(y >= 0, rate * tau[x], 0.0),
                     np.full(batch, start_mass)], axis=1)  # fmt: skip
    on_u = penalty * (weight[x] * tau[x] + offset - 1.0 - u)
    for n_steps in (1.0, 2.0):
        found = device.zeros(batch, types.value), device.zeros(3 * batch, types.value)
        sums = device.zeros(parts, np.float64)
        launch(device, "sample_gradients", types.T, parts,
               (np.int32(step), np.int32(batch), up(np.array([0.0, n_steps, 0.0])),
                *map(up, (from_.astype(np.int32), to.astype(np.int32), discount)), np.float64(start_mass),
                store(tau), store(f), up(np.array([u, 0.0])), store(weight), np.int32(0), np.int32(1),
                np.float64(penalty), np.float64(offset), np.float64(ridge), *found, sums),
               shared_bytes=SCRATCH)  # fmt: skip
        moved = float(n_steps > step)
        close(device.download(found[0]), moved * on_tau)
        close(device.download(found[1]), moved * on_f.ravel())
        close(device.download(sums).sum(), moved * on_u.sum())


def variates(device, types):
    """Exponential ones: mean and variance 1, a third of them above log 3; another seed gives other ones."""
    n, drawn = 3000, []
    for seed in (5, 6):
        factor = device.empty(n, types.value)
        for_each(device, "draw_factors", types.T, n, (np.int64(n), np.uint64(seed), factor))
        drawn.append(device.download(factor))
    for each in drawn:
        np.testing.assert_allclose([each.mean(), each.var()], 1.0, rtol=0.1)
        np.testing.assert_allclose((each > np.log(3.0)).mean(), 1.0 / 3.0, atol=0.05)
    assert (drawn[0] != drawn[1]).mean() > 0.99


EXERCISES = {
    "operator": (operator, extrapolation, building, variates),
    "saddle": (saddle,),
}


def run(library, modules, orders=(2,), every_type=None):
    """Lines of a run: exercise and what happened."""
    lines = []
    for module in modules:
        for exercise in EXERCISES[module]:
            for order, types in product(orders, every_type or (Types(),)):
                try:
                    exercise(EmulatedDevice(library, seed=order, order=order), types)
                    verdict = "ok"
                except EmulatorError as error:
                    verdict = f"misuse {error}"
                except (
                    AssertionError,
                    pytest.fail.Exception,
                    ValueError,
                    IndexError,
                    ZeroDivisionError,
                ) as error:
                    verdict = "value " + str(error).strip().replace("\n", " ")[:80]
                lines.append(f"{exercise.__name__} {verdict}")
    return lines


if __name__ == "__main__":
    verdicts = run(sys.argv[1], sys.argv[2:] or tuple(EXERCISES))
    print("\n".join(verdicts), flush=True)
    sys.exit(0 if all(line.endswith(" ok") for line in verdicts) else 3)
