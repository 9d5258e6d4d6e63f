"""Names that one might try, and what they are called here: the one table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

_READ = "read_transitions(path, or a frame, or batches)"
HINTS: dict[str, dict[str, str]] = {
    "lingendice": {
        **dict.fromkeys(
            ("read_csv", "read_parquet", "read_table", "read_log", "read", "load", "from_pandas"), _READ
        ),
        **dict.fromkeys(
            ("estimate", "evaluate", "fit", "ope", "gendice", "GenDICE"), "solve(counts, policy=...)"
        ),
        **dict.fromkeys(
            ("stationary", "stationary_distribution", "steady_state"), "solve(matrix).stationary"
        ),
        **dict.fromkeys(("compare", "rank"), 'solve(counts, policy={"a": ..., "b": ...})'),
        **dict.fromkeys(("cross_validate", "holdout", "validate"), "backtest(counts)"),
        "page_rank": "pagerank(graph)",
        **dict.fromkeys(
            ("absorption", "committor", "mean_first_passage_time", "mfpt", "hitting_time"),
            "hitting(data, targets)",
        ),
        "MarkovChain": "solve(matrix)",
        "load_counts": "Counts.load(path)",
        "save": "Counts.save(path)",
        "plot": "solve(...).plot()",
        "interval": "solve(...).interval()",
        "Dataset": "Transitions(...) for continuous states, Counts.from_transitions(...) for others",
        "taxi": "from lingendice.environments import taxi",
    },
    "Counts": {
        **dict.fromkeys(("n", "N", "size", "n_transitions"), "total"),
        **dict.fromkeys(("states", "labels"), "state_labels"),
        **dict.fromkeys(("P", "toarray", "to_array", "tocsr", "to_scipy"), "matrix"),
        "actions": "action_labels",
        "rewards": "reward",
        "shape": "n_states and n_actions",
        "solve": "lingendice.solve(counts)",
    },
    "Solution": {
        **dict.fromkeys(("ratio", "ratios", "weights", "w", "w_tau", "density_ratio"), "tau"),
        **dict.fromkeys(
            ("pi", "mu", "d", "x", "distribution", "stationary_distribution", "steady_state"), "stationary"
        ),
        **dict.fromkeys(("ci", "confidence_interval", "conf_int", "conf_interval"), "interval()"),
        **dict.fromkeys(("se", "std", "stderr", "standard_error", "std_error"), "interval().standard_error"),
        **dict.fromkeys(("v", "V", "value_function"), "state_values"),
        "values": "value, or state_values for one of every state",
        **dict.fromkeys(("q", "Q", "q_value", "q_function"), "q_values"),
        **dict.fromkeys(("average_reward", "mean_reward", "per_step", "estimate"), "value"),
        **dict.fromkeys(("reward", "rewards"), "operator.reward"),
        **dict.fromkeys(
            ("returns", "discounted_return", "total_return", "episode_return"), "expected_return"
        ),
        **dict.fromkeys(("length", "episode_length"), "expected_length"),
        **dict.fromkeys(("success", "is_converged", "solved"), "converged"),
        **dict.fromkeys(("checks", "diagnostics"), "diagnose()"),
        **dict.fromkeys(("to_pandas", "to_polars", "to_df", "to_dataframe", "frame", "df"), "to_frame()"),
        **dict.fromkeys(("nit", "iterations"), "n_iter"),
        **dict.fromkeys(("time", "runtime", "elapsed"), "seconds"),
        **dict.fromkeys(("counts", "data"), "operator.counts"),
        **dict.fromkeys(("labels", "state_labels", "states"), "operator.counts.state_labels"),
        "message": "status.advice",
        "p": "data_distribution",
        "ess": "effective_sample_size",
        "bounds": "value_bounds",
        "summary": "print(solution)",
        "to_json": "json.dumps(solution.to_dict())",
        "report": "lingendice.report(solution)",
        "save": "pickle.dump, or json.dump of to_dict()",
    },
    "Comparison": {
        "value": "values, or comparison[name].value",
        **dict.fromkeys(("intervals", "ci", "confidence_interval"), "interval()"),
        **dict.fromkeys(("rank", "order"), "ranking"),
        **dict.fromkeys(("policies", "keys"), "names"),
        **dict.fromkeys(("diff", "paired"), "difference(first, second)"),
        **dict.fromkeys(("to_pandas", "to_polars", "to_df", "to_dataframe", "frame", "df"), "to_frame()"),
        **dict.fromkeys(("tau", "stationary"), "comparison[name].stationary and .tau"),
    },
    "Hitting": {
        **dict.fromkeys(
            ("hitting_probability", "absorption_probability", "fate", "committor"), "probability"
        ),
        **dict.fromkeys(("mfpt", "mean_first_passage_time", "time", "steps", "hitting_time"), "mean_steps"),
        **dict.fromkeys(("std", "sd", "std_steps"), "sd_steps"),
        **dict.fromkeys(("recurrence_time", "mean_recurrence_time"), "mean_return"),
        **dict.fromkeys(("ci", "confidence_interval"), "interval()"),
        **dict.fromkeys(("to_pandas", "to_polars", "to_df", "to_dataframe", "frame", "df"), "to_frame()"),
    },
    "Backtest": {
        **dict.fromkeys(("to_pandas", "to_polars", "to_df", "to_dataframe", "frame", "df"), "to_frame()"),
        **dict.fromkeys(("results", "table"), "rows, or to_frame()"),
        **dict.fromkeys(("summary", "conclusion", "passed", "ok"), "verdict"),
        **dict.fromkeys(("coverage", "share_inside"), "inside()"),
    },
    "Interval": {
        **dict.fromkeys(("lower", "lo", "left", "min"), "low"),
        **dict.fromkeys(("upper", "hi", "right", "max"), "high"),
        **dict.fromkeys(("se", "std", "stderr"), "standard_error"),
        **dict.fromkeys(("value", "mean", "center", "point"), "estimate"),
        **dict.fromkeys(("confidence_level", "confidence"), "level"),
    },
}


class Hinted:
    """What answers a name that it does not have by the one that is meant."""

    known_as: ClassVar[str]
    """Key of ``HINTS``."""

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self.known_as, name, self)


def no_attribute(what: str, name: str, owner: Any) -> AttributeError:
    """The error of a name that is not there, with the one that is meant where that is known."""
    said = f"module {what!r}" if what == "lingendice" else f"{what!r} object"
    meant = HINTS[what].get(name)
    hint = f"; you may mean {meant}" if meant else ""
    return AttributeError(f"{said} has no attribute {name!r}{hint}", name=name, obj=owner)
