"""Options that say what the data are, and the one place where the command reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from lingendice.io.array_files import read_array

if TYPE_CHECKING:
    from lingendice import Counts

DataFile = Annotated[Path, typer.Argument(metavar="FILE", help="Transitions or matrix, by suffix.")]
Gamma = Annotated[float, typer.Option(help="Discount factor, above 0 and up to 1 (1: average reward).")]
Policy = Annotated[
    Path | None,
    typer.Option(
        help="Probabilities of actions: .npy, .npz or .csv of numbers (states x actions); or by label, .csv "
        "with the columns state, action and probability, or .json."
    ),
]
Policies = Annotated[
    list[Path] | None, typer.Option("--policy", help="A policy as for solve; may be given several times.")
]
Initial = Annotated[
    Path | None,
    typer.Option(
        help="Initial distribution: .npy, .npz or .csv of numbers; or .csv with the columns state and "
        "probability, or .json."
    ),
]
Level = Annotated[float, typer.Option(min=0.0, max=1.0, help="Confidence level of the intervals.")]

_COLUMNS = {
    "state": "Column of the state.",
    "next_state": "Column of the next state.",
    "action": "Column of the action.",
    "reward": "Column of the reward.",
    "episode": "Column of the episode.",
    "terminal": "Column: the episode ended here.",
    "truncated": "Column: recording stopped here.",
    "weight": "Column of how often the row was seen.",
    "time": "Column to put rows of an episode in order by.",
}
_Names = Annotated[
    bool | None,
    typer.Option(
        "--labels/--ids",
        help="Integers of states and actions are names / count from 0; by default sparse ones are names.",
    ),
]
Labels = dict[str, list[str]]
Columns = dict[str, Any]
"""Names of columns by role, and whether integers are names; None where the caller said nothing."""


def with_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each role of a column; it receives them together, as ``names``."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "names"]
    added = [
        inspect.Parameter(
            role,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(f"--{role.replace('_', '-')}", help=text)],
        )
        for role, text in _COLUMNS.items()
    ]
    added.append(inspect.Parameter("labels", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Names))

    def run(**given: Any) -> None:
        names = {role: given.pop(role) for role in (*_COLUMNS, "labels")}
        command(names=names, **given)

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [*keyword, *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def load(
    file: Path, names: Columns, policy: Any = None, *, keep_episodes: bool = False
) -> tuple[Counts, Labels]:
    """Read and count a file as :func:`lingendice.read_transitions` does, and tell the labels that it uses.

    ``keep_episodes`` keeps what each episode contributed, where there are any, for clustered intervals. A
    policy tells of states and actions that ids counting from 0 may happen not to contain.
    """
    from lingendice.io.read import ReadOptions, count_piece

    options = ReadOptions.of(
        at_least=(0, 0) if np.ndim(policy) != 2 else policy.shape,
        keep_episodes=None if keep_episodes else False,
        on_command_line=True,
        **names,
    )
    counts = count_piece(file, options).result()
    labels = {name: getattr(counts, name) for name in ("state_labels", "action_labels")}
    return counts, {
        name: [str(label) for label in given] for name, given in labels.items() if given is not None
    }


def distributions(**paths: Path | None) -> dict[str, Any]:
    """Read the arrays, or tables by label, that were named."""
    return {name: read_array(path) for name, path in paths.items() if path is not None}


def policies(paths: list[Path]) -> dict[str, Any]:
    """Policies by the names of their files; a three-dimensional array holds several."""
    stems = [path.stem for path in paths]
    found: dict[str, Any] = {}
    for path, stem in zip(paths, stems, strict=True):
        name = stem if stems.count(stem) == 1 else str(path)
        array = read_array(path)
        several = np.ndim(array) == 3
        found |= {f"{name}[{k}]": array[k] for k in range(len(array))} if several else {name: array}
    return found
