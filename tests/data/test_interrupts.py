"""Ctrl-C at any moment is raised, once, with what was found by then; signals are left as they were."""

from __future__ import annotations

import gc
import itertools
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lingendice as lg
from lingendice.data import display, interrupts
from lingendice.data.interrupts import interruptible, pending
from lingendice.kernels import online_updates as online_kernels
from lingendice.results import bootstrap as resampling
from lingendice.solvers import stationary as exact
from lingendice.solvers.control import Controls, Stop

# Random rows: their order is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")


def ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)  # os.kill would return before another thread has got it


@pytest.fixture(autouse=True)
def nothing_is_left():
    # Python ignores an exception raised in a callback of its garbage collector, and a signal that comes
    # during a collection is handled there: Hypothesis's callback would swallow the Ctrl-C that a test awaits.
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    yield
    gc.callbacks[:] = callbacks
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupts._outer() is None


def ctrl_c_once(number, at):
    """Ctrl-C in one of several threads; all of them wait until it was heard."""
    if number == at:
        ctrl_c()
    limit = time.perf_counter() + 10.0
    while number >= at and not pending() and time.perf_counter() < limit:
        time.sleep(0.001)


def chain(n, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, (n, n)) * (rng.random((n, n)) < 6 / n)
    return lg.Counts.from_matrix(counts + np.roll(np.eye(n, dtype=int), 1, axis=1))


def log(n_states=12, n_actions=2, rows=600, seed=0):
    rng = np.random.default_rng(seed)
    return lg.Counts.from_transitions(
        rng.integers(0, n_states, rows),
        rng.integers(0, n_states, rows),
        action=rng.integers(0, n_actions, rows),
        reward=rng.random(rows),
        episode=np.arange(rows) // 20,
        keep_episodes=True,
    )


def transitions(n=300):
    rng = np.random.default_rng(0)
    state = rng.standard_normal((n + 1, 2))
    start = rng.standard_normal((20, 2))
    return lg.Transitions(
        state[:-1], rng.integers(0, 2, n), rng.random(n), state[1:], n_actions=2, initial_state=start
    )


def half(states):
    return np.full((len(states), 2), 0.5)


def policy(seed=1, n_states=12, n_actions=2):
    return np.random.default_rng(seed).dirichlet(np.ones(n_actions), n_states)


# -- when a solve has just converged ----------------------------------------------------------------------


@pytest.fixture
def at_the_end(monkeypatch):
    """Ctrl-C when a solver has ended, and before anybody was told."""
    monkeypatch.setattr(display.ProgressLine, "__exit__", ctrl_c)


TABULAR = {
    "gth": lambda **more: lg.solve(chain(50), method="gth", **more),
    "elimination": lambda **more: lg.solve(chain(400), method="elimination", **more),
    "aggregation": lambda **more: lg.solve(chain(400), method="aggregation", **more),
    "gauss-seidel": lambda **more: lg.solve(chain(400), 0.9, method="gauss-seidel", **more),
    "ridge": lambda **more: lg.solve(log(), 0.9, policy=policy(), ridge=1e-3, ratio="state_action", **more),
    "horizon": lambda **more: lg.solve(chain(50), initial=np.eye(50)[0], horizon=9, **more),
    "convex": lambda **more: lg.solve(chain(8), 0.9, method="convex", **more),
    "sgd": lambda **more: lg.solve(chain(8), 0.9, method="sgd", tol=1e-2, **more),
}


@pytest.mark.parametrize("method", TABULAR)
def test_the_finished_solution_is_attached(at_the_end, method):
    with pytest.raises(lg.Interrupted) as caught:
        TABULAR[method]()
    found = TABULAR[method](options={"on_interrupt": "return"})
    assert found.status is caught.value.solution.status is lg.Status.SOLVED
    np.testing.assert_array_equal(caught.value.solution.stationary, found.stationary)


@pytest.mark.parametrize("method", ["gendice", "linear"])
def test_the_finished_estimate_over_continuous_states_is_attached(at_the_end, method):
    options = {"gendice": {"hidden": (8,), "batch": 32}, "linear": {"n_features": 10, "n_dual_features": 5}}
    limit = {"max_iter": 5} if method == "gendice" else {}
    with pytest.raises(lg.Interrupted) as caught:
        lg.solve(transitions(), 0.9, policy=half, method=method, options=options[method], **limit)
    # Five steps do not train networks.
    expected = lg.Status.NOT_RELIABLE if method == "gendice" else lg.Status.SOLVED
    assert caught.value.solution.status is expected
    assert np.isfinite(caught.value.solution.value)


def test_a_baseline_of_networks_keeps_what_it_trained(at_the_end):
    def train(**more):
        return lg.baselines.neural_dual_dice(
            transitions(), 0.9, policy=half, max_iter=5, options={"hidden": (8,), **more}
        )

    with pytest.raises(lg.Interrupted) as caught:
        train()
    assert caught.value.solution.status is lg.Status.TRAINED
    assert train(on_interrupt="return").status is lg.Status.TRAINED


def interrupted_after(seconds, work):
    """Run some work and press Ctrl-C meanwhile."""
    timer = threading.Timer(seconds, ctrl_c)
    try:
        timer.start()
        work()
    finally:
        timer.join()


def solve_for_ever(counts):
    began = time.perf_counter()
    while time.perf_counter() - began < 10.0:
        lg.solve(counts, method="elimination")


def test_none_is_lost_in_a_loop_of_short_eliminations():
    counts, rng, late = chain(400), random.Random(0), []
    lg.solve(counts, method="elimination")
    for _ in range(40):
        began = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            interrupted_after(rng.uniform(0.002, 0.02), lambda: solve_for_ever(counts))
        late.append(time.perf_counter() - began)
    assert max(late) < 2.0


def test_a_mixture_of_classes_with_unknown_shares_is_not_solved(monkeypatch):
    """Two classes and a state that leads to both: where it ends up was not finished."""
    matrix = np.zeros((5, 5), int)
    matrix[:4, :4], matrix[4] = np.kron(np.eye(2, dtype=int), [[1, 3], [2, 1]]), [0, 1, 3, 0, 1]
    plain, calls = exact.solve_irreducible, []

    def ended_early(rates, *rest, **more):
        calls.append(rates.shape[0])
        outcome = plain(rates, *rest, **more)
        if len(calls) == 3:
            outcome.distribution, outcome.converged, outcome.stopped = np.ones(calls[-1]), False, Stop.TIME
        return outcome

    monkeypatch.setattr(exact, "solve_irreducible", ended_early)
    found = lg.solve(lg.Counts.from_matrix(matrix), initial=[0, 0, 0, 0, 1])
    assert len(calls) == 3
    assert found.status is lg.Status.TIME_LIMIT


# -- many solves in one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [1, 4])
def test_a_comparison_keeps_the_policies_that_are_finished(monkeypatch, threads, at):
    counts, policies = log(), {name: policy(name) for name in range(12)}
    plain, begun, number = exact.solve_irreducible, [], itertools.count(1)

    def counted(rates, *rest, **more):
        begun.append(rates.shape[0])
        ctrl_c_once(next(number), at)
        return plain(rates, *rest, **more)

    monkeypatch.setattr(exact, "solve_irreducible", counted)
    arguments = {"policy": policies, "ridge": 0, "threads": threads}
    with pytest.raises(lg.Interrupted) as caught:
        lg.solve(counts, 1.0, **arguments)
    kept = caught.value.solution
    assert at - 1 <= len(kept) <= at + 2
    monkeypatch.undo()
    whole = lg.solve(counts, 1.0, **arguments)
    if at > 1:
        for name, solution in zip(kept.names, kept, strict=True):
            np.testing.assert_array_equal(solution.stationary, whole[name].stationary)
    begun.clear()
    number = itertools.count(1)
    monkeypatch.setattr(exact, "solve_irreducible", counted)
    returned = lg.solve(counts, 1.0, **arguments, options={"on_interrupt": "return"})
    assert at - 1 <= len(returned) <= at + 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ridge", [0, 1e-3])
def test_a_bootstrap_is_interrupted_with_its_solution(monkeypatch, threads, ridge):
    solution = lg.solve(log(), 0.9, policy=policy(), ridge=ridge)
    plain, done, number = resampling._Again.solve, [], itertools.count(1)

    def counted(self, counts):
        done.append(1)
        ctrl_c_once(next(number), 5)
        return plain(self, counts)

    monkeypatch.setattr(resampling._Again, "solve", counted)
    with pytest.raises(lg.Interrupted) as caught:
        solution.interval(method="bootstrap", replicates=1000, threads=threads)
    assert caught.value.solution is solution
    assert len(done) < 30


def test_a_replicate_cut_short_is_never_taken_for_one(monkeypatch):
    """Where sweeps do not settle the exact solver is asked; it used to swallow the signal."""
    monkeypatch.setattr(resampling, "WARM_TOL", -1.0)
    solution = lg.solve(log(), 0.9, policy=policy(), ridge=0)
    plain, calls = exact.solve_irreducible, []

    def counted(rates, *rest, **more):
        calls.append(1)
        if len(calls) == 3:
            ctrl_c()
        return plain(rates, *rest, **more)

    monkeypatch.setattr(exact, "solve_irreducible", counted)
    with pytest.raises(lg.Interrupted):
        solution.interval(method="bootstrap", replicates=100, threads=1)
    assert len(calls) == 3


def test_a_ridge_path_is_interrupted(at_the_end):
    solution = TABULAR["ridge"](options={"on_interrupt": "return"})
    with pytest.raises(lg.Interrupted) as caught:
        lg.ridge_path(solution)
    assert caught.value.solution is solution


def test_bounds_are_not_made_of_a_distribution_that_was_cut_short(monkeypatch):
    counts = lg.Counts.from_transitions([0, 0, 1, 1], [1, 2, 0, 1], reward=[1.0, 0.0, 1.0, 1.0])
    given = {"initial": [0.5, 0.5, 0], "restart": [1, 0, 0]}
    solution, expected = lg.solve(counts, 0.9, **given), lg.solve(counts, 0.9, **given).value_bounds
    monkeypatch.setattr(display.ProgressLine, "__exit__", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        _ = solution.value_bounds
    monkeypatch.undo()
    assert solution.value_bounds == expected


# -- streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["add_rewards", "add_transitions"])
def test_an_update_is_counted_whole(monkeypatch, kernel):
    rng = np.random.default_rng(0)
    states, rewards = rng.integers(0, 5, 200), rng.random(199)
    online, whole = lg.OnlineRatio(5), lg.OnlineRatio(5)
    plain = getattr(online_kernels, kernel)
    monkeypatch.setattr(online_kernels, kernel, lambda *a: (ctrl_c(), plain(*a))[1])
    with pytest.raises(KeyboardInterrupt):
        online.update(states[:100], states[1:101], rewards[:100])
    for step in range(100, 150):
        online.update(int(states[step]), int(states[step + 1]), float(rewards[step]))
    with pytest.raises(KeyboardInterrupt):
        _ = online.value
    monkeypatch.undo()
    online.update(states[150:-1], states[151:], rewards[150:])
    whole.update(states[:-1], states[1:], rewards)
    assert online.snapshot() == whole.snapshot()
    np.testing.assert_allclose(online.stationary, whole.stationary, rtol=1e-10)


def test_a_refresh_cut_short_is_made_again(monkeypatch):
    rng = np.random.default_rng(1)
    states = rng.integers(0, 40, 3000)
    online = lg.OnlineRatio(40)
    online.update(states[:2000], states[1:2001])
    _ = online.stationary
    online.update(states[2000:2100], states[2001:2101])
    plain = online_kernels.entering
    monkeypatch.setattr(online_kernels, "entering", lambda *a: (plain(*a), ctrl_c())[0])
    with pytest.raises(KeyboardInterrupt):
        _ = online.stationary
    monkeypatch.undo()
    expected = lg.solve(online.snapshot()).stationary
    np.testing.assert_allclose(online.stationary, expected, rtol=1e-9)


def batches(rows=400, size=50):
    rng = np.random.default_rng(2)
    for _ in range(rows // size):
        yield {"state": rng.integers(0, 9, size), "next_state": rng.integers(0, 9, size)}


def test_a_source_that_waits_does_not_hold_ctrl_c_back():
    release = threading.Event()

    def waiting():
        yield {"state": np.zeros(3, int), "next_state": np.zeros(3, int)}
        release.wait(60)

    lg.read_transitions(batches(), threads=2)  # compiled
    began = time.perf_counter()
    # As the system does: of all threads the main one, which asks the source, gets it first.
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lg.read_transitions(waiting(), threads=2)
    assert time.perf_counter() - began < 5.0
    release.set()
    timer.join()


# -- threads and other handlers ---------------------------------------------------------------------------


def test_solves_in_other_threads_touch_no_signal(monkeypatch):
    touched, found = [], []
    plain = signal.signal
    monkeypatch.setattr(signal, "signal", lambda *given: (touched.append(given), plain(*given))[1])
    thread = threading.Thread(target=lambda: found.append(lg.solve(chain(400), method="elimination")))
    thread.start()
    thread.join()
    assert found[0].status is lg.Status.SOLVED
    assert touched == []


def test_ctrl_c_is_the_main_threads_alone():
    """A solve that another thread runs by itself goes on."""
    counts, found, begun = chain(400), [], threading.Event()

    def other():
        while not begun.wait(0.0) or len(found) < 3:
            found.append(lg.solve(counts, method="elimination").status)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(0.05, lambda: solve_for_ever(counts))
    begun.set()
    thread.join()
    assert set(found) == {lg.Status.SOLVED}


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_another_handler_is_left_alone(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with interruptible() as work:
            work.hold()
            assert signal.getsignal(signal.SIGINT) is handler
            ctrl_c()
            assert not pending()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_does_not_hide_ctrl_c():
    def fail(answer):
        with interruptible(answer) as work:
            work.hold()
            work.solution = "best"
            ctrl_c()
            raise ValueError("of a distribution cut short")

    with pytest.raises(lg.Interrupted) as caught:
        fail("raise")
    assert caught.value.solution == "best"
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ValueError, match="cut short"):
        fail("return")


def test_a_time_limit_that_is_no_number_is_refused():
    for name, bad in {"tol": 0, "max_iter": 2.5, "time_limit": -1.0, "threads": 0}.items():
        with pytest.raises(ValueError, match=name):
            Controls.read(**{"tol": 1e-10} | {name: bad})


@pytest.mark.parametrize("answer", ["raise", "return"])
def test_what_compiled_code_makes_of_ctrl_c_is_raised_as_such(answer):
    """Numba runs Python to make arrays of a result; an exception there becomes a SystemError."""

    def compiled():
        with interruptible(answer):
            try:
                ctrl_c()
            except KeyboardInterrupt as error:
                raise SystemError("returned a result with an exception set") from error

    with pytest.raises(KeyboardInterrupt):
        compiled()


def test_none_becomes_another_error_in_small_solves():
    matrix, rng = np.array([[90, 10], [30, 70]]), random.Random(1)
    lg.solve(matrix)

    def solve_on(seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            lg.solve(matrix)

    before = signal.signal(signal.SIGALRM, ctrl_c)
    try:
        for _ in range(200):
            with pytest.raises(KeyboardInterrupt):
                solve_on(rng.uniform(0.0005, 0.004))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_step_done_whole_is_followed_by_its_ctrl_c():
    done = []

    def steps():
        with interruptible() as work:
            for step in range(5):
                with work.held():
                    if step == 2:
                        ctrl_c()
                    done.append(step)

    with pytest.raises(KeyboardInterrupt):
        steps()
    assert done == [0, 1, 2]


MOMENTS = ("never", "before", "held", "within", "after")


@settings(max_examples=200, deadline=None)
@given(
    depth=st.integers(1, 4),
    moment=st.sampled_from(MOMENTS),
    twice=st.booleans(),
    error=st.booleans(),
    answer=st.sampled_from(["raise", "return"]),
    attached=st.booleans(),
)
def test_one_signal_one_interrupt(depth, moment, twice, error, answer, attached):
    """Whenever it comes, however deep, and however the work ends."""

    def work_at(level):
        with interruptible(answer if level == 1 else "raise") as work:
            if level == 1 and moment == "before":
                ctrl_c()
            work.hold()
            if level == 1:
                work.solution = "best" if attached else None
                if moment == "held":
                    ctrl_c()
            if level < depth:
                work_at(level + 1)
            elif moment == "within":
                ctrl_c()
            if level == 1 and moment == "after":
                ctrl_c()
            if level == 1 and twice and pending():
                ctrl_c()
            if level == 1 and error:
                raise ArithmeticError

    held = moment in ("held", "within", "after")
    ended = None
    try:
        work_at(1)
    except (KeyboardInterrupt, ArithmeticError) as raised:
        ended = raised
    if moment == "before" or (held and (answer == "raise" or twice)):
        assert type(ended) is (lg.Interrupted if attached and held else KeyboardInterrupt)
    else:
        assert type(ended) is (ArithmeticError if error else type(None))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupts._outer() is None


def press_at(instruction, work):
    """Run some work and press Ctrl-C at an instruction of it or of the flag; False where it has fewer."""
    seen = 0

    def trace(frame, event, arg):
        nonlocal seen
        if frame.f_code.co_filename not in (interrupts.__file__, __file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == instruction:
                sys.settrace(None)
                ctrl_c()
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return seen >= instruction


def plain_work():
    with interruptible() as work:
        work.hold()
        work.solution = "best"


def work_within_work():
    with interruptible() as work:
        with interruptible() as inner:
            inner.hold()
        work.solution = "best"


def failing_work():
    try:
        with interruptible() as work:
            work.hold()
            raise ArithmeticError
    except ArithmeticError:
        return


def returning_work():
    with interruptible("return") as work:
        work.solution = work.raised


@pytest.mark.parametrize("work", [plain_work, work_within_work, failing_work, returning_work])
def test_at_every_instruction(work):
    """Between any two of them a signal is raised, and the next piece of work knows nothing of it."""
    instruction, more = 0, True
    while more:
        instruction += 1
        raised = False
        try:
            more = press_at(instruction, work)
        except KeyboardInterrupt:
            raised = True
        assert raised == more, instruction
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, instruction
        assert interrupts._outer() is None, instruction
        with pytest.raises(KeyboardInterrupt):
            next_work()
    assert instruction > 100


def next_work():
    with interruptible() as work:
        work.hold()
        ctrl_c()
        assert work.raised
