"""Implied timescales against finite differences, leaving paths out, and known chains."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.results import lags as module


def walk(matrix, steps, seed):
    rng = np.random.default_rng(seed)
    bounds, path = np.cumsum(matrix, axis=1), np.zeros(steps, np.int64)
    for step, draw in enumerate(rng.random(steps - 1)):
        path[step + 1] = min(np.searchsorted(bounds[path[step]], draw, "right"), len(matrix) - 1)
    return path


def two_halves(leave=0.02):
    """Four states in two halves; the largest eigenvalue beside 1 is 1 - 2 leave."""
    half = np.full((2, 2), 0.5)
    return np.block([[(1 - leave) * half, leave * half], [leave * half, (1 - leave) * half]])


def plain_timescales(paths, lag, n_states):
    counts = np.zeros((n_states, n_states))
    for path in paths:
        np.add.at(counts, (path[:-lag], path[lag:]), 1.0)
    values = np.linalg.eigvals(counts / counts.sum(axis=1, keepdims=True))
    sizes = np.sort(np.abs(values))[::-1][1:]
    return -lag / np.log(sizes)


def test_timescales_are_those_of_dense_matrices():
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.ones(5), 5)
    paths = [walk(matrix, size, seed) for seed, size in enumerate((500, 900, 300))]
    found = lg.lags(paths, [1, 2, 5], timescales=4)
    for row, lag in enumerate((1, 2, 5)):
        np.testing.assert_allclose(found.timescales[row], plain_timescales(paths, lag, 5), rtol=1e-9)
    low, high = found.interval()
    assert (low < found.timescales).all()
    assert (found.timescales < high).all()


def test_large_chains_take_the_largest_eigenvalues_alone(monkeypatch):
    matrix = two_halves()
    path = walk(matrix, 4000, 1)
    dense = lg.lags(path, [1, 3], timescales=1)
    monkeypatch.setattr(module, "DENSE_STATES", 0)
    sparse = lg.lags(path, [1, 3], timescales=1)
    np.testing.assert_allclose(sparse.timescales, dense.timescales, rtol=1e-8)
    np.testing.assert_allclose(sparse.interval().low, dense.interval().low, rtol=1e-6)


@pytest.mark.parametrize("lag", [1, 4])
def test_standard_errors_are_those_of_leaving_paths_out(lag):
    matrix = two_halves(0.1)
    paths = [walk(matrix, 60, seed) for seed in range(150)]
    found = lg.lags(paths, [lag], timescales=1)
    left_out = [plain_timescales(paths[:k] + paths[k + 1 :], lag, 4)[0] for k in range(150)]
    jackknife = np.sqrt(149 / 150 * ((left_out - np.mean(left_out)) ** 2).sum())
    assert found.interval().standard_error[0, 0] == pytest.approx(jackknife, rel=0.05)


def test_errors_of_predictions_are_those_of_leaving_paths_out():
    matrix = two_halves(0.1)
    paths = [walk(matrix, 60, seed) for seed in range(150)]
    (first, second) = lg.lags(paths, [1, 4], sets={"left": [0, 1]}).chapman_kolmogorov
    assert first.predicted == pytest.approx(first.estimated, abs=1e-12)

    def both(some):
        counts = [np.zeros((4, 4)) for _ in range(2)]
        for path in some:
            for table, lag in zip(counts, (1, 4), strict=True):
                np.add.at(table, (path[:-lag], path[lag:]), 1.0)
        weights = [table.sum(axis=1)[:2] / table[:2].sum() for table in counts]
        chains = [table / table.sum(axis=1, keepdims=True) for table in counts]
        ahead = (np.linalg.matrix_power(chains[0], 4), chains[1])
        return [weight @ power[:2, :2].sum(axis=1) for weight, power in zip(weights, ahead, strict=True)]

    assert (second.predicted, second.estimated) == pytest.approx(tuple(both(paths)), rel=1e-12)
    left_out = np.array([both(paths[:k] + paths[k + 1 :]) for k in range(150)])
    jackknife = np.sqrt(149 / 150 * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    assert (second.predicted_error, second.estimated_error) == pytest.approx(tuple(jackknife), rel=0.1)


@pytest.mark.parametrize("lag", [1, 10])
def test_intervals_of_timescales_cover(lag):
    truth, covered = -1.0 / np.log(0.96), 0
    for seed in range(120):
        low, high = lg.lags(walk(two_halves(), 4000, seed), [lag], timescales=1).interval()
        covered += low[0, 0] <= truth <= high[0, 0]
    assert 0.90 <= covered / 120 <= 0.99


def test_a_chain_passes_and_a_chain_with_memory_does_not():
    chain = lg.lags(walk(two_halves(), 20_000, 3), [1, 2, 5, 10])
    assert max(abs(one.z) for one in chain.chapman_kolmogorov) < 3.0
    hidden = np.array([0, 1, 0, 1])[walk(two_halves(0.2)[[0, 2, 1, 3]][:, [0, 2, 1, 3]], 20_000, 3)]
    alternating = np.arange(20_000) // 2 % 2  # 0 0 1 1: one step back decides the next
    assert max(abs(one.z) for one in lg.lags(alternating, [1, 2]).chapman_kolmogorov) > 10.0
    assert lg.lags(hidden, [1, 2]).kept.tolist() == [1.0, 1.0]


def test_states_that_are_not_returned_to_are_left_out_and_said():
    path = np.concatenate([[4, 5], walk(two_halves(), 998, 0)])
    found = lg.lags(path, [1, 2])
    np.testing.assert_allclose(found.kept, [997 / 999, 996 / 998], rtol=1e-12)
    assert "their states are not returned to" in str(found)


def test_frames_plots_and_dictionaries_show_all():
    labeled = np.array(["a", "b", "c", "d"])[walk(two_halves(), 2000, 4)].tolist()
    found = lg.lags([labeled], [1, 2, 5], timescales=2)
    frame = found.to_frame(library="pandas")
    assert frame.shape == (6, 5)
    assert (frame.low < frame.timescale).all()
    assert {axes.get_title(loc="left") for axes in found.plot().axes} == {
        "Implied timescales", "Chapman-Kolmogorov: line predicted",
    }  # fmt: skip
    assert len(found.plot("timescales").axes) == 1
    assert found.to_dict()["chapman_kolmogorov"][0]["name"] in "abcd"
    assert "implied timescales" in str(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lags": [2, 1]}, "must be increasing"),
        ({"lags": []}, "must be increasing"),
        ({"lags": [0]}, "lags"),
        ({"sets": {"x": [9]}}, r"sets\['x'\] has 9, which is no state"),
        ({"lags": [100]}, "no path has more than lag=100 states"),
    ],
)
def test_errors_name_the_entry(arguments, message):
    with pytest.raises(ValueError, match=message):
        lg.lags(walk(two_halves(), 50, 0), **arguments)
