"""Data that lie on the device: counted there, or copied to the host and solved on the device."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lingendice as lg
from gpu.test_device_solve import counted_log, random_counts, random_log
from lingendice.data.checks import lies_on_device
from lingendice.gpu import DeviceCounts, HostCopyWarning, count_transitions
from lingendice.results.status import Status

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.gpu.HostCopyWarning")


class Compressed:
    """The face of a cupyx sparse matrix, over arrays of whatever device is under test."""

    on_device = True
    has_canonical_format = True

    def __init__(self, device, matrix):
        self.shape = matrix.shape
        self.indptr = device.upload(matrix.indptr.astype(np.int32))
        self.indices = device.upload(matrix.indices.astype(np.int32))
        self.data = device.upload(matrix.data)

    def tocsr(self):
        return self


class Foreign:
    """An array of another library: nothing but the interface, or DLPack from a GPU."""

    def __init__(self, array, by):
        self._array = array
        if by == "interface":
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    def __dlpack__(self, **_):
        return self._array.held.__dlpack__()

    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_a_sparse_matrix_is_solved_as_from_the_host(device, gamma):
    matrix = random_counts(40)
    there = lg.solve(Compressed(device, matrix), gamma, device="cuda")
    here = lg.solve(matrix, gamma)
    assert type(there) is lg.Solution
    assert there.status is Status.SOLVED
    assert f"on {device.name}" in there.reason
    for name in ("stationary", "tau", "data_distribution"):
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-8)
    assert there.leak == 0.0
    assert there.effective_sample_size == pytest.approx(here.effective_sample_size, rel=1e-8)
    assert there.value is None
    assert there.interval(of="stationary").standard_error.shape == (40,)


def test_a_leak_of_any_distribution_is_refused_there(device):
    """Two recurrent classes, one of which goes through a state that was never left."""
    chain = device.upload(np.array([[1.0, 0, 0], [0, 0, 1.0], [0, 0, 0]]))
    restart = device.upload(np.array([0.0, 1.0, 0.0]))
    there = lg.solve(chain, restart=restart, device="cuda")
    assert there.status is Status.SEVERAL_DISTRIBUTIONS
    with pytest.raises(ValueError, match=r"50\.00% of the stationary mass"):
        lg.solve(chain, restart=restart, leak="error", device="cuda")


def test_a_restart_is_checked_there_where_nothing_leaks(device):
    matrix = device.upload(random_counts(12).toarray())
    with pytest.raises(ValueError, match="restart"):
        lg.solve(matrix, 0.9, restart=device.upload(np.full(12, -1.0)), device="cuda")


@pytest.mark.parametrize(("part", "place"), [("indices", 3), ("indptr", 2), ("indptr", -1)])
def test_rows_that_point_outside_are_refused(device, part, place):
    matrix = random_counts(40)
    getattr(matrix, part)[place] = 10**6
    with pytest.raises(ValueError, match="point outside 40 x 40"):
        lg.solve(Compressed(device, matrix), device="cuda")


def test_ids_of_different_width_are_not_narrowed(device):
    state, following = device.upload(np.array([0, 1], np.int32)), device.upload(np.array([1, 2**32]))
    with pytest.raises(ValueError, match=r"state id 4294967296 in row 1 is outside 0\.\.1"):
        count_transitions(state, following, n_states=2)


@pytest.mark.parametrize("whole", [True, False])
def test_a_dense_matrix_keeps_what_it_says_of_its_sample(device, whole):
    matrix = random_counts(20).toarray()
    matrix = matrix if whole else matrix / matrix.sum(axis=1, keepdims=True)
    there = lg.solve(device.upload(matrix), device="cuda")
    expected = lg.solve(matrix)
    np.testing.assert_allclose(there.stationary, expected.stationary, rtol=1e-8)
    assert (there.effective_sample_size is None) == (not whole)


@pytest.mark.parametrize("by", ["interface", "dlpack"])
def test_arrays_of_other_libraries_are_read(emulator, by):
    matrix = emulator.upload(random_counts(12).toarray().astype(float))
    foreign = Foreign(matrix, by)
    assert lies_on_device(foreign)
    there = lg.solve(foreign, 0.9, device="cuda")
    expected = lg.solve(matrix.held, 0.9).stationary
    assert np.abs(there.stationary - expected).sum() <= 2e-10


@pytest.mark.parametrize("n_states", [6, 150])
@pytest.mark.parametrize("columns", [(), ("reward",), ("reward", "weight")])
def test_counting_agrees_with_the_host(device, n_states, columns):
    log = random_log(600, n_states=n_states)
    rng = np.random.default_rng(0)
    extra = {"reward": log["reward"], "weight": rng.integers(1, 4, 600).astype(float)}
    extra = {name: extra[name] for name in columns}
    terminal = rng.random(600) < 0.05
    up = device.upload
    there = count_transitions(
        up(log["state"]), up(log["next_state"]), up(log["action"]), n_states=n_states, n_actions=3,
        terminal=up(terminal), **{name: up(value) for name, value in extra.items()},
    ).to_host()  # fmt: skip
    here = lg.Counts.from_transitions(
        log["state"],
        log["next_state"],
        log["action"],
        n_states=n_states,
        n_actions=3,
        terminal=terminal,
        **extra,
    )
    for name in ("indptr", "indices", "count"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    for name in ("reward_mean", "reward_m2") if "reward" in columns else ():
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_a_log_is_counted_and_solved_there(device, gamma, ends):
    log = random_log(500)
    first = log["state"][::20]
    up = device.upload
    policy = np.random.default_rng(5).dirichlet(np.ones(3), size=12)
    terminal = (np.arange(500) % 20 == 19) & (log["reward"] > 0) if ends else np.zeros(500, bool)
    counts = count_transitions(
        up(log["state"]), up(log["next_state"]), up(log["action"]), n_states=12, n_actions=3,
        reward=up(log["reward"]), terminal=up(terminal), first_state=up(first),
    )  # fmt: skip
    assert isinstance(counts, DeviceCounts)
    there = lg.solve(counts, gamma, policy=up(policy), ridge=0, clone=0, device="cuda")
    held = lg.Counts.from_transitions(**log, terminal=terminal, keep_episodes=False)  # nor does the device
    here = lg.solve(held, gamma, policy=policy, ridge=0, clone=0)
    np.testing.assert_allclose(there.stationary, here.stationary, rtol=1e-7)
    assert there.value == pytest.approx(here.value, rel=1e-7)
    assert there.terminal_mass == pytest.approx(here.terminal_mass, rel=1e-7, abs=1e-12)
    assert there.interval(0.9).standard_error == pytest.approx(here.interval(0.9).standard_error, rel=1e-6)


def test_leaks_on_the_device(device):
    matrix = random_counts(20).toarray()
    matrix[3] = 0
    with pytest.warns(lg.LeakWarning):
        there = lg.solve(device.upload(matrix), device="cuda")
    with pytest.warns(lg.LeakWarning):
        here = lg.solve(matrix)
    distribution = device.upload(np.full(20, 0.05))
    lg.solve(
        device.upload(matrix), restart=distribution, device="cuda"
    )  # a restart distribution was named: no warning
    assert there.leak == pytest.approx(here.leak, rel=1e-8)
    absorbed = lg.solve(device.upload(matrix), 0.9, leak="absorb", device="cuda")
    assert absorbed.leak == pytest.approx(lg.solve(matrix, 0.9, leak="absorb").leak, rel=1e-8)
    with pytest.raises(ValueError, match="no outgoing transitions"):
        lg.solve(device.upload(matrix), leak="error", device="cuda")


def test_warnings_point_to_the_caller(emulator):
    matrix = random_counts(20).toarray()
    matrix[3] = 0
    for data, choices in ((matrix, {}), (matrix, {"ridge": 0.1}), (emulator.upload(matrix), {})):
        with pytest.warns(lg.LeakWarning) as caught:
            lg.solve(data, device="cuda", **choices)
        assert {warning.filename for warning in caught} == {__file__}


def test_several_distributions_on_the_device(device):
    matrix = np.kron(np.eye(2), [[1.0, 2.0], [2.0, 1.0]])
    there = lg.solve(device.upload(matrix), device="cuda")
    assert there.status is Status.SEVERAL_DISTRIBUTIONS
    assert len(there.distributions) == 2
    with pytest.raises(lg.SeveralDistributions):
        _ = there.stationary
    assert "2, one for each" in str(there)


@pytest.mark.filterwarnings("default::lingendice.gpu.HostCopyWarning")
def test_nothing_moves_in_silence(device):
    matrix = random_counts(10).toarray()
    on_device, initial = device.upload(matrix), np.arange(1.0, 11.0) / 55.0
    with pytest.raises(ValueError, match='pass device="cuda"'):
        lg.solve(on_device)
    with pytest.raises(ValueError, match="initial lies on the device"):
        lg.solve(matrix, 0.9, initial=device.upload(initial), device="cuda")
    expected = lg.solve(matrix, 0.9, initial=initial)
    for start in (initial, device.upload(initial)):
        with pytest.warns(HostCopyWarning, match=r"\(.* MB\) are copied to the host") as caught:
            there = lg.solve(on_device, 0.9, initial=start, device="cuda")
        assert [warning.filename for warning in caught] == [__file__]
        assert np.abs(there.stationary - expected.stationary).sum() <= 2e-10


def counted(device):
    """The same log counted on the device and on the host."""
    log, up = random_log(), device.upload
    there = count_transitions(
        up(log["state"]), up(log["next_state"]), up(log["action"]), n_states=12, n_actions=3,
        reward=up(log["reward"]), first_state=up(log["state"][::20]),
    )  # fmt: skip
    return there, counted_log(keep_episodes=False)


CASES = {
    "the default": {},
    "a number": {"ridge": 1e-3},
    "exact": {"ridge": 0, "clone": 0},
    "cloned": {"clone": 5.0, "ratio": "state", "ridge": 0},
    "smoothed": {"smoothing": 2.0, "ridge": 0, "clone": 0},
    "behavior": {"behavior": np.full((12, 3), 1 / 3), "ratio": "state", "ridge": 0},
    "features": {"features": np.kron(np.eye(12), np.ones((3, 1))), "tol": 1e-3},
}


@pytest.mark.parametrize("case", CASES)
def test_counts_made_there_are_solved_as_those_of_the_host(device, case):
    there, here = counted(device)
    choices = {"policy": np.random.default_rng(3).dirichlet(np.ones(3), size=12)} | CASES[case]
    put = {
        name: device.upload(value) if isinstance(value, np.ndarray) else value
        for name, value in choices.items()
    }
    found, expected = lg.solve(there, 0.5, device="cuda", **put), lg.solve(here, 0.5, **choices)
    assert found.status is expected.status
    np.testing.assert_allclose(found.cell_distribution, expected.cell_distribution, rtol=1e-7, atol=1e-10)
    assert found.value == pytest.approx(expected.value, rel=1e-8)
    with warnings.catch_warnings():  # a copy that was asked for is no surprise
        warnings.simplefilter("error")
        again = lg.solve(there.to_host(), 0.5, device="cuda", **choices)
    np.testing.assert_array_equal(again.stationary, found.stationary)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["policy", "reward", "features", "smoothing distribution"])
def test_an_array_on_the_device_beside_data_on_the_host_is_named(emulator, where, name):
    table, option = emulator.upload(np.full((12, 3), 1 / 3)), name.split()[0]
    given = {option: (1.0, table) if option == "smoothing" else table}
    with pytest.raises(ValueError, match=f"^{name} lies on the device and is needed on the host; copy it"):
        lg.solve(counted_log(), 0.9, device=where, **given)


def test_data_on_the_device_are_named_where_only_the_host_serves(emulator):
    matrix = emulator.upload(np.ones((3, 3)))
    for use in (lg.audit, lg.pagerank, lg.Counts.from_matrix):
        with pytest.raises(ValueError, match="counts lies on the device and is needed on the host; copy it"):
            use(matrix)


def test_numbers_that_the_host_refuses_are_refused_there(device):
    """Not read without their imaginary parts, nor as negative."""
    with pytest.raises(ValueError, match="counts has dtype complex128; give integers or real"):
        lg.solve(device.upload(np.array([[1.0, 1j], [1.0, 1.0]])), device="cuda")
    with pytest.raises(ValueError, match=r"counts\[0, 1\] is 9223372036854775813, beyond 2\*\*53"):
        lg.solve(device.upload(np.array([[1, 2**63 + 5], [1, 1]], np.uint64)), device="cuda")


def test_bad_entries_are_named(device):
    matrix = random_counts(10).toarray().astype(float)
    matrix[2, 3] = -1.0
    with pytest.raises(ValueError, match=r"counts\[2, 3\] is -1.0, which is negative"):
        lg.solve(device.upload(matrix), device="cuda")
    ids = device.upload(np.array([0, 1, 7]))
    with pytest.raises(ValueError, match="state id 7 in row 2"):
        count_transitions(ids, ids, n_states=5)
    with pytest.raises(ValueError, match="square"):
        lg.solve(device.upload(np.ones((2, 3))), device="cuda")
    with pytest.raises(ValueError, match="state lies on the host"):
        count_transitions([0, 1], [1, 0], n_states=2)


@pytest.mark.parametrize(("first", "row"), [([0, 5, 9], 1), ([0, 1, -1], 2)])
def test_a_first_state_out_of_range_is_named(device, first, row):
    ids = device.upload(np.array([0, 1, 4]))
    with pytest.raises(ValueError, match=rf"first_state\[{row}\] is {first[row]}, outside 0\.\.4"):
        count_transitions(ids, ids, n_states=5, first_state=device.upload(np.array(first)))


def test_without_a_gpu_the_error_says_what_is_missing():
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception:
        with pytest.raises(ImportError, match=r"cuda12|NVIDIA"):
            lg.solve([[1, 1], [1, 0]], device="cuda")
    else:
        pytest.skip("there is a GPU")
