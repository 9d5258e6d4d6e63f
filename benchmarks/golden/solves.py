"""Some 800 small solves over all options, by the public API alone: the net under a change of structure."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

import lingendice as lg
from golden.logs import CHAINS, WITH_ACTIONS, Drawn, draw

SEEDS = 4
"""Logs of each kind; a case takes one of them by its name."""
Case = tuple[str, Callable[[], Any]]
GAMMAS = (0.9, 1.0)
DIVERGENCES = (
    "chi2", "kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation", "weighted_l2", "equality",
    "wasserstein", "mmd", "dudley",
)  # fmt: skip


def cases() -> dict[str, Callable[[], Any]]:
    """Every case by name; names say which log, gamma and options."""
    parts = (
        chains(), with_actions(), divergences(), features(), comparisons(), baselines(), intervals(), forms(),
        graphs(), streams(), continuous(),
    )  # fmt: skip
    listed = list(itertools.chain(*parts))
    found = dict(listed)
    if len(found) != len(listed):
        names = [name for name, _ in listed]
        raise ValueError(f"two cases are called {next(name for name in names if names.count(name) > 1)!r}")
    return found


def seed_of(name: str) -> int:
    """Which of the logs of a kind a case takes; the same on every machine."""
    return zlib.crc32(name.encode()) % SEEDS


def _solve(
    kind: str, gamma: float, what: str, options: Callable[[Drawn], dict[str, Any]] | dict[str, Any]
) -> Case:
    """A case of ``solve``; options may depend on the log that is drawn."""
    name = f"{kind}, gamma={gamma:.10g}, {what}"

    def call() -> Any:
        log = draw(kind, seed_of(name))
        given = options(log) if callable(options) else options
        return lg.solve(log.counts, gamma, **{"threads": 1, **given})

    return name, call


# -- chains ------------------------------------------------------------------------------------------------

ANY_DATA: dict[str, Callable[[Drawn], dict[str, Any]]] = {
    "initial=": lambda log: {"initial": log.initial},
    "restart=": lambda log: {"restart": log.initial},
    "leak=absorb": lambda log: {"leak": "absorb"},
    "leak=error": lambda log: {"leak": "error"},
    "terminal=restart": lambda log: {"terminal": "restart"},
    "terminal=absorb": lambda log: {"terminal": "absorb"},
    "horizon=1": lambda log: {"horizon": 1},
    "horizon=15": lambda log: {"horizon": 15},
    "reward=": lambda log: {"reward": log.reward},
    "reward_range=": lambda log: {"reward_range": (-4.0, 4.0)},
    "smoothing=0.5": lambda log: {"smoothing": 0.5},
    "ridge=0.01": lambda log: {"ridge": 0.01},
    "ridge=0.3, max_iter=2": lambda log: {"ridge": 0.3, "max_iter": 2},
}
OF_CHAINS = ANY_DATA | {
    "defaults": lambda log: {},
    "smoothing=(2, p)": lambda log: {"smoothing": (2.0, log.initial)},
    **{
        f"method={method}": lambda log, method=method: {"method": method, "initial": log.initial}
        for method in ("gth", "elimination", "gauss-seidel", "aggregation")
    },
    "method=aggregation, threads=2": lambda log: {
        "method": "aggregation", "threads": 2, "initial": log.initial,
    },
    "method=convex": lambda log: {"method": "convex"},
    "method=extragradient": lambda log: {"method": "extragradient", "max_iter": 3000, "tol": 1e-6},
    "method=sgd": lambda log: {"method": "sgd", "max_iter": 3000, "seed": 3},
}  # fmt: skip


def chains() -> Iterator[Case]:
    """Chains without actions: every option at two discounts, three more discounts by default."""
    for kind, gamma, (what, options) in itertools.product(CHAINS, GAMMAS, OF_CHAINS.items()):
        # Every other pair of kind and option: all options meet all difficulties in one of the two.
        if what == "defaults" or seed_of(f"{kind} {gamma} {what}") < 2:
            yield _solve(kind, gamma, what, options)
    for kind, gamma in itertools.product(CHAINS, (0.3, 0.999, 1 - 1e-9)):
        yield _solve(kind, gamma, "defaults", {})


# -- policies ----------------------------------------------------------------------------------------------

OF_POLICIES = ANY_DATA | {
    "defaults": lambda log: {},
    "behavior=": lambda log: {"behavior": log.behavior},
    "plug-in": lambda log: {"ridge": 0.0, "clone": 0.0, "ratio": "state_action"},
    "plug-in, initial=": lambda log: {"ridge": 0.0, "ratio": "state_action", "initial": log.initial},
    "ratio=state": lambda log: {"ratio": "state"},
    "ratio=state, ridge=0": lambda log: {"ratio": "state", "ridge": 0.0},
    "ratio=state, ridge=0, behavior=": lambda log: {"ratio": "state", "ridge": 0.0, "behavior": log.behavior},
    "ratio=state, ridge=0, clone=5": lambda log: {"ratio": "state", "ridge": 0.0, "clone": 5.0},
    "ratio=state, ridge=0.01": lambda log: {"ratio": "state", "ridge": 0.01},
    "ratio=state_action, ridge=0.01": lambda log: {"ratio": "state_action", "ridge": 0.01},
    **{
        f"unseen={unseen}": lambda log, unseen=unseen: {"unseen": unseen, "ridge": 0.0}
        for unseen in ("leak", "renormalize", "mean")
    },
    "unseen=mean, ridge=0.02, leak=absorb": lambda log: {"unseen": "mean", "ridge": 0.02, "leak": "absorb"},
    "horizon=5, unseen=leak": lambda log: {"horizon": 5, "unseen": "leak"},
    "policy=None": lambda log: {"policy": None},
    **{
        f"method={method}": lambda log, method=method: {
            "method": method, "ridge": 0.0, "initial": log.initial,
        }
        for method in ("gth", "elimination", "gauss-seidel", "aggregation")
    },
    "method=convex": lambda log: {"method": "convex"},
    "method=extragradient": lambda log: {"method": "extragradient", "max_iter": 3000, "tol": 1e-6},
    "method=sgd": lambda log: {"method": "sgd", "max_iter": 3000, "seed": 5},
    "normalize=self": lambda log: {"normalize": "self", "ridge": 0.05},
    "penalty=0.2": lambda log: {"penalty": 0.2, "ridge": 0.05},
}  # fmt: skip


def with_actions() -> Iterator[Case]:
    """A target policy: every option at two discounts, more discounts by default."""
    for kind, gamma, (what, options) in itertools.product(WITH_ACTIONS, GAMMAS, OF_POLICIES.items()):
        if what == "defaults" or seed_of(f"{kind} {gamma} {what}") < 1:
            yield _solve(kind, gamma, what, lambda log, options=options: _of_target(log) | options(log))
    for kind, gamma in itertools.product(WITH_ACTIONS, (0.5, 0.99, 0.999)):
        yield _solve(kind, gamma, "defaults", _of_target)
        if gamma == 0.999:  # beside leaks the ridge and its limits
            for ridge in (1e-9, 1e-3):
                options = {"ratio": "state", "ridge": ridge}
                yield _solve(
                    kind, gamma, f"ratio=state, ridge={ridge:g}",
                    lambda log, options=options: _of_target(log) | options,
                )  # fmt: skip


def _of_target(log: Drawn) -> dict[str, Any]:
    """The target policy, with first states where the log knows none."""
    return {"policy": log.policy} | ({} if log.kind.known_episodes else {"initial": log.initial})


# -- the objective -----------------------------------------------------------------------------------------


def divergences() -> Iterator[Case]:
    """Every divergence, tabular with a ridge and over features."""
    for number, (divergence, gamma) in enumerate(itertools.product(DIVERGENCES, GAMMAS)):
        kind = ("actions", "actions and ends", "actions and leaks")[number % 3]
        if divergence in ("wasserstein", "dudley"):  # their distances over cells of actions have no default
            kind = "chain with leaks"
        yield _solve(
            kind, gamma, f"divergence={divergence}, ridge=0.1",
            lambda log, divergence=divergence: {
                "policy": log.policy, "divergence": divergence, "ridge": 0.1, "max_iter": 400, "tol": 1e-5,
            },
        )  # fmt: skip
        yield _solve(
            "chain" if number % 2 else "chain with ends", gamma, f"divergence={divergence}, features=groups",
            lambda log, divergence=divergence: {
                "divergence": divergence, "features": _groups(log), "max_iter": 400, "tol": 1e-5,
            },
        )  # fmt: skip


def _groups(log: Drawn, n: int = 3) -> Any:
    """Features: cells in a few groups."""
    return lg.features.one_hot(np.arange(log.counts.n_cells) % n)


def _waves(log: Drawn) -> np.ndarray:
    """Nonnegative features that overlap."""
    place = np.linspace(0.0, 3.0, log.counts.n_cells)
    return np.column_stack([np.ones_like(place), 1 + np.cos(place), 1 + np.sin(2 * place)])


OVER_FEATURES: dict[str, Callable[[Drawn], dict[str, Any]]] = {
    "features=groups": lambda log: {"features": _groups(log)},
    "features=waves": lambda log: {"features": _waves(log)},
    "features=sparse": lambda log: {"features": sparse.csr_array(_waves(log))},
    "features=waves, dual_features=groups": lambda log: {
        "features": _waves(log), "dual_features": _groups(log, 4),
    },
    "features=waves, normalize=self": lambda log: {"features": _waves(log), "normalize": "self"},
    "features=waves, ridge=0.1, penalty=3": lambda log: {
        "features": _waves(log), "ridge": 0.1, "penalty": 3.0,
    },
    "features=waves, bound=1": lambda log: {
        "features": _waves(log), "bound": 1.0, "max_iter": 2000, "tol": 1e-6,
    },
    "bound=3": lambda log: {"bound": 3.0, "max_iter": 2000, "tol": 1e-6},
    "features=waves, method=extragradient": lambda log: {
        "features": _waves(log), "method": "extragradient", "max_iter": 2000, "tol": 1e-6,
    },
    "features=waves, method=sgd": lambda log: {
        "features": _waves(log), "method": "sgd", "max_iter": 2000, "options": {"batch": 16},
    },
    "features=waves, reward=": lambda log: {"features": _waves(log), "reward": log.reward},
}  # fmt: skip


def features() -> Iterator[Case]:
    """Ratios among features, for a chain and for policies."""
    kinds = ("chain", "actions and ends", "actions and leaks")
    for kind, gamma, (what, options) in itertools.product(kinds, GAMMAS, OVER_FEATURES.items()):
        if kind != "actions and leaks" or seed_of(f"{kind} {gamma} {what}") < 2:
            yield _solve(
                kind, gamma, what, lambda log, options=options: {"policy": log.policy, **options(log)}
            )


# -- several policies, other methods -----------------------------------------------------------------------


def comparisons() -> Iterator[Case]:
    """Two policies on one log, and their difference."""
    several: dict[str, Callable[[Drawn], dict[str, Any]]] = {
        "two policies": lambda log: {"policy": {"one": log.policy, "other": log.other_policy}},
        "two plug-ins": lambda log: {
            "policy": [log.policy, log.other_policy], "ridge": 0.0, "clone": 0.0, "initial": log.initial,
        },
        "two policies, horizon=8": lambda log: {"policy": [log.policy, log.other_policy], "horizon": 8},
    }  # fmt: skip
    for kind, (what, options) in itertools.product(
        ("actions", "actions and ends", "actions and leaks"), several.items()
    ):
        for gamma in GAMMAS:
            yield _solve(kind, gamma, what, options)
        name, call = _solve(kind, 0.9, what, options)

        def contrast(call: Callable[[], Any] = call) -> Any:
            found = call()
            gap = found.difference(*found.names)
            return [gap.low, gap.high, gap.standard_error, *found.probability_best.values()]

        yield f"{name}, difference", contrast


def baselines() -> Iterator[Case]:
    """The other methods."""
    lists: dict[str, Callable[[Drawn, float], Any]] = {
        "naive_average": lambda log, gamma: lg.baselines.naive_average(log.counts, gamma),
        "model_based": lambda log, gamma: lg.baselines.model_based(
            log.counts, gamma, policy=log.policy, initial=log.initial, smoothing="add-one"
        ),
        "ips": lambda log, gamma: lg.baselines.ips(log.counts, gamma, policy=log.policy, initial=log.initial),
        "ips, behavior=": lambda log, gamma: lg.baselines.ips(
            log.counts, gamma, policy=log.policy, behavior=log.behavior, initial=log.initial
        ),
        "dual_dice": lambda log, gamma: lg.baselines.dual_dice(log.counts, gamma, policy=log.policy),
        "gradient_dice": lambda log, gamma: lg.baselines.gradient_dice(log.counts, gamma, policy=log.policy),
        "best_dice": lambda log, gamma: lg.baselines.best_dice(log.counts, gamma, policy=log.policy),
        "doubly_robust": lambda log, gamma: lg.baselines.doubly_robust(log.counts, gamma, policy=log.policy),
        "doubly_robust, folds=3": lambda log, gamma: lg.baselines.doubly_robust(
            log.counts, gamma, policy=log.policy, folds=3, weighted=True
        ),
        **{
            f"{name}{how}": lambda log, gamma, name=name, given=given: getattr(lg.baselines, name)(
                log.counts, gamma, policy=log.policy, **given
            )
            for name, how, given in (
                ("trajectory_wise", "", {}),
                ("trajectory_wise", ", horizon=9", {"horizon": 9, "weighted": False}),
                ("step_wise", "", {}), ("step_wise", ", horizon=9", {"horizon": 9, "weighted": False}),
                ("per_decision", "", {}), ("per_decision", ", horizon=9", {"horizon": 9}),
            )
        },
    }  # fmt: skip
    kinds = ("actions", "actions and ends", "actions, ends and leaks", "few rows of actions")
    for kind, gamma, (what, method) in itertools.product(kinds, GAMMAS, lists.items()):
        name = f"{kind}, gamma={gamma:g}, baselines.{what}"
        yield (
            name,
            lambda name=name, kind=kind, gamma=gamma, method=method: method(draw(kind, seed_of(name)), gamma),
        )


# -- intervals, forms of data and policies -----------------------------------------------------------------


def intervals() -> Iterator[Case]:
    """Intervals by bootstrap, of functions and of single entries; paths over ridges, audits, checks."""
    questions: dict[str, Callable[[Any, Drawn], Any]] = {
        "bootstrap": lambda found, log: found.interval(method="bootstrap", replicates=40, seed=1, threads=1),
        "bootstrap, percentile": lambda found, log: found.interval(
            method="bootstrap", replicates=40, kind="percentile", threads=1
        ),
        "of a function": lambda found, log: found.interval(0.8, of=log.reward),
        "of entries": lambda found, log: found.interval(of="stationary", entries=[0, 2]),
        "bootstrap of entries": lambda found, log: found.interval(
            of="stationary", entries=[1], method="bootstrap", replicates=30, threads=1
        ),
    }  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "default": {},
        "plug-in": {"ridge": 0.0, "clone": 0.0, "ratio": "state_action"},
        "ridge": {"ridge": 0.02},
    }
    kinds = ("actions", "actions and ends", "actions and leaks", "chain with ends")
    for kind, gamma, (way, given), (what, question) in itertools.product(
        kinds, GAMMAS, ways.items(), questions.items()
    ):
        name = f"{kind}, gamma={gamma:g}, {way}, interval {what}"
        if seed_of(name) >= 2 or (way == "plug-in" and kind in CHAINS):
            continue

        def call(
            name: str = name, kind: str = kind, gamma: float = gamma, given=given, question=question
        ) -> Any:
            log = draw(kind, seed_of(name))
            found = lg.solve(log.counts, gamma, policy=log.policy, threads=1, **given)
            one = question(found, log)
            return {name: getattr(one, name) for name in ("low", "high", "estimate", "standard_error")}

        yield name, call


def forms() -> Iterator[Case]:
    """Policies, rewards and first states by label; data as matrices of all sorts."""
    labeled = "labeled actions and ends"

    def by_label(log: Drawn) -> dict[Any, dict[Any, float]]:
        counts = log.counts
        actions = counts.action_labels
        return {
            state: dict(zip(actions, map(float, row), strict=True))
            for state, row in zip(counts.state_labels, log.policy, strict=True)
        }

    asked: dict[str, Callable[[Drawn], dict[str, Any]]] = {
        "policy by label": lambda log: {"policy": by_label(log)},
        "policy: one action by label": lambda log: {
            "policy": dict.fromkeys(log.counts.state_labels, log.counts.action_labels[0])
        },
        "policy: a function of labels": lambda log: {"policy": lambda state: by_label(log)[state]},
        "policy: one action each": lambda log: {"policy": log.policy.argmax(axis=1)},
        "initial by label": lambda log: {"policy": log.policy, "initial": {log.counts.state_labels[0]: 1.0}},
        "initial: one label": lambda log: {"policy": log.policy, "initial": log.counts.state_labels[1]},
        "reward by label": lambda log: {
            "policy": log.policy,
            "reward": {state: number + 1.0 for number, state in enumerate(log.counts.state_labels)},
        },
    }  # fmt: skip
    for gamma, (what, options) in itertools.product(GAMMAS, asked.items()):
        yield _solve(labeled, gamma, what, options)
    rng = np.random.default_rng(11)
    counted = rng.integers(0, 9, (7, 7))
    classes = sparse.block_diag([counted[:3, :3] + 1.0, counted[3:, 3:] + 1.0]).toarray()
    matrices = {
        "counts": counted, "nested list": counted.tolist(), "sparse": sparse.csr_array(counted),
        "probabilities": rng.dirichlet(np.ones(7), 7), "one state": np.array([[3]]),
        "periodic": np.roll(np.eye(5), 1, axis=1), "dangling": np.triu(counted, 1),
        "two classes": classes, "nearly decomposable": classes + 1e-12, "not square": counted[:3],
        "negative": -counted, "an empty state": counted * (np.arange(7) > 0),
    }  # fmt: skip
    for gamma, (what, matrix) in itertools.product((0.85, 1.0), matrices.items()):
        yield (
            f"matrix of {what}, gamma={gamma:g}",
            lambda gamma=gamma, matrix=matrix: lg.solve(matrix, gamma, threads=1),
        )
    wide = np.where(rng.random((300, 300)) < 0.02, rng.random((300, 300)), 0.0)
    wide = sparse.csr_array(wide + 0.1 * np.roll(np.eye(300), 1, axis=1))
    for gamma, method, threads in itertools.product(
        (0.9, 1.0), ("auto", "gth", "elimination", "gauss-seidel", "aggregation"), (1, 2)
    ):
        yield (
            f"300 states, gamma={gamma:g}, method={method}, threads={threads}",
            lambda gamma=gamma, method=method, threads=threads: lg.solve(
                wide, gamma, method=method, threads=threads
            ),
        )


# -- doors -------------------------------------------------------------------------------------------------


def graphs() -> Iterator[Case]:
    """PageRank."""
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c"), ("d", "a"), ("b", "e")]
    weighted = [(*edge, 1.0 + number) for number, edge in enumerate(edges)]
    matrix = np.random.default_rng(3).integers(0, 3, (9, 9))
    asked: dict[str, tuple[Any, dict[str, Any]]] = {
        "pairs": (edges, {}),
        "triples": (weighted, {}),
        "alpha=0.5": (edges, {"alpha": 0.5}),
        "alpha=0": (edges, {"alpha": 0.0}),
        "alpha=1": (weighted[:4], {"alpha": 1.0}),
        "personalization": (weighted, {"personalization": {"a": 1.0, "d": 3.0}}),
        "dangling": (weighted, {"dangling": {"b": 1.0}, "personalization": {"a": 1.0}}),
        "matrix": (matrix, {}),
        "matrix, personalization": (matrix, {"personalization": np.arange(9.0)}),
    }
    for what, (graph, given) in asked.items():
        yield f"pagerank of {what}", lambda graph=graph, given=given: lg.pagerank(graph, threads=1, **given)


def streams() -> Iterator[Case]:
    """OnlineRatio and the embedded functions."""
    for kind, gamma in itertools.product(
        ("chain of pairs", "chain with leaks", "chain of two classes"), (0.9, 0.999, 1.0)
    ):
        for forgetting in (1.0, 0.98):
            name = f"OnlineRatio, {kind}, gamma={gamma:g}, forgetting={forgetting:g}"

            def follow(
                name: str = name, kind: str = kind, gamma: float = gamma, forgetting=forgetting
            ) -> Any:
                log = draw(kind, seed_of(name))
                online = lg.OnlineRatio(log.counts.n_states, gamma, forgetting=forgetting)
                state, following = log.columns["state"], log.columns["next_state"]
                seen = []
                for cut in np.array_split(np.arange(state.size), 4):
                    online.update(state[cut], following[cut])
                    seen.append(online.stationary.tolist())
                return [seen, online.tau, online.leak]

            yield name, follow
        name = f"embed, {kind}, gamma={gamma:g}"

        def embedded(name: str = name, kind: str = kind, gamma: float = gamma) -> Any:
            log = draw(kind, seed_of(name))
            matrix = log.counts.matrix.astype(float)
            dense, found = matrix.toarray(), np.zeros((2, log.counts.n_states))
            first = lg.embed.solve(dense, gamma, found[0], log.initial)
            rows = (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data)
            second = lg.embed.solve_csr(*rows, gamma, found[1], log.initial)
            return [int(first), int(second), found.tolist()]

        yield name, embedded


def _transitions(seed: int, ends: bool, discrete: bool) -> lg.Transitions:
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(160, 2))
    action = rng.integers(0, 2, 160) if discrete else rng.normal(size=(160, 1))
    push = (action - 0.5) if discrete else action[:, 0]
    following = 0.8 * state + 0.1 * rng.normal(size=(160, 2)) + 0.2 * push[:, None]
    flags = {"terminal": rng.random(160) < 0.08} if ends else {}
    return lg.Transitions(
        state, action, state[:, 0] + push, following, episode=np.repeat(np.arange(8), 20), **flags
    )


def continuous() -> Iterator[Case]:
    """Continuous states, trained for next to no time."""
    even = np.array([0.4, 0.6])

    def target(discrete: bool) -> Any:
        if discrete:
            return lambda states: np.tile(even, (len(states), 1))
        return lg.policies.GaussianPolicy(lambda states: -0.2 * states[:, :1], std=0.5)

    quick = {"options": {"effort": "quick"}}
    small = {"max_iter": 30, "options": {"hidden": (8,), "batch": 16}}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("linear", {}), ("linear", {"ridge": 0.1}),
        ("linear", {"divergence": "kl", "ridge": 0.1, "tol": 1e-4}),
        ("gendice", small), ("gendice", small | {"bound": 1.0}),
        ("fqe", quick),
    ]  # fmt: skip
    for number, (method, given) in enumerate(asked):
        for gamma, discrete in itertools.product(GAMMAS, (True, False)):
            if method == "fqe" and discrete != (gamma < 1):
                continue
            words = ", ".join(f"{key}={value}" for key, value in given.items() if key != "options")
            actions = "two actions" if discrete else "real actions"
            name = ", ".join(
                ["transitions", f"gamma={gamma:g}", method, *([words] if words else []), actions]
            )
            log = partial(_transitions, number, True, discrete)
            asked_for = {"policy": target(discrete), "method": method, "threads": 1, **given}
            yield name, lambda log=log, gamma=gamma, asked_for=asked_for: lg.solve(log(), gamma, **asked_for)
    yield (
        "transitions, gamma=0.9, model",
        lambda: lg.solve(
            _transitions(7, False, True), 0.9, policy=target(True), method="model", threads=1, **quick
        ),
    )
