"""What mkdocs cannot do by itself: tables made from measured results, and pages made from notebooks.

``<!-- table:NAME -->`` in a page becomes a table made from the committed results. ``python docs/hooks.py``
writes tables into the pages of ``FILLED``, between that line and ``<!-- /table -->``. Below each stands
which version measured it, and on the site whether the code has changed since. Every notebook becomes a page.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import provenance  # noqa: E402

FILLED = (ROOT / "README.md", DOCS / "trust.md", DOCS / "diagnostics.md")
README_ROWS = {
    "PageRank 0.85, 1,000,000 nodes, 9,404,008 edges, 2 threads": "PageRank, 1M nodes, 9.4M edges",
    "stationary distribution, grid 40k": "slow-mixing grid, 40,000 states",
    "stationary distribution, nearly decomposable 20k, coupling 1e-03": "nearly decomposable, 20,000 states",
    "stationary distribution, nearly decomposable 20k, coupling 1e-09": "the same, coupling 1e-9",
    "stationary distribution, scale-free 20k": "scale-free, 20,000 states",
    "solve, dense 500 states": "dense, 500 states",
    "count 20M transitions, 1M states, int32 ids": "counting 20M transitions, 1M states",
    "count 20M transitions, 12,000 cells x 2,000 states, three successors, int32 ids": "the same, 12k cells",
    "solve, 10-state array": "one call on a 10-state array",
    "first solve, cold cache: logged MDP": "first call ever (compiles)",
}


def _read(path: str) -> Any:
    return json.loads((ROOT / "benchmarks" / path).read_text(encoding="utf-8"))


def _table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def speed() -> str:
    """Every measured ratio and limit."""
    rows = []
    held = _read("results/ratios.json")
    for name, row in sorted(held.items()):
        times = ", ".join(f"{who} {_time(seconds)}" for who, seconds in row["seconds"].items())
        met = "yes" if row["met"] else "**no**"
        rows.append([name, row["measured"], row["goal"], met, times, row["note"]])
    machines = "; ".join(sorted({row["machine"] for row in held.values()}))
    headings = ["what", "measured", "goal", "met", "medians", "note"]
    return f"{_table(headings, rows)}\n\nMachine: {machines}."


def accuracy() -> str:
    """The default of ``solve`` on Taxi beside other estimators."""
    rows, shown = [], ("default", "plain average", "IPS (state ratios)", "behavior known")
    for setting in _read("paper/results/taxi_default.json")["settings"]:
        methods = setting["methods"]
        rows.append(
            [
                setting["behavior"],
                f"{setting['episodes']} x {setting['steps']}",
                f"{setting['gamma']:g}",
                *(f"{methods[name]['ln_mse']:.2f}" for name in shown),
                f"{setting['ln_efficiency_bound']:.2f}",
                f"{setting['asked']:g}" + ("" if setting["met"] else " (**missed**)"),
            ]
        )
    return _table(["behavior", "log", "gamma", *shown, "efficiency bound", "asked"], rows)


def readme_speed() -> str:
    """The rows of the speed table that the README shows."""
    held = _read("results/ratios.json")
    rows = []
    for name, label in README_ROWS.items():
        row = held.get(name)
        if row is None:
            continue
        times = row["seconds"]
        mine = _time(times["lingendice"]) if "lingendice" in times else row["measured"]
        peer = row["goal"].removeprefix(">= ").partition(" x ")[2] if row["goal"].startswith(">= ") else ""
        told = f"{row['measured'].removesuffix(' x')} x the speed of {peer}" if peer else row["note"]
        rows.append([label, mine, told + ("" if row["met"] else f" (goal {row['goal'].split(' x ')[0]} x)")])
    return _table(["on two cores", "time", "relative to the fastest correct peer"], rows)


def _trust() -> dict[str, Any]:
    """The summary of the report families of benchmarks/trust."""
    packed = (ROOT / "benchmarks" / "trust" / "results" / "report.json.gz").read_bytes()
    groups: dict[str, Any] = json.loads(gzip.decompress(packed))["groups"]
    return groups


MARKOV = "all that a Markov model fits"


def _number(pair: list[float | None], factor: float = 1.0, digits: int = 1) -> str:
    value, error = pair
    return "-" if value is None else f"{factor * value:.{digits}f} ± {factor * (error or 0.0):.{digits}f}"


def _percents(found: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    return [_number(found[name], 100.0) for name in names]


def trust_families() -> str:
    """Intervals and checks of the default on every report family."""
    names = ("coverage", "coverage_unflagged", "failures", "failures_flagged", "good_alarmed",
             "silent_failures", "markov_alarms", "flagged")  # fmt: skip
    rows = [
        [
            name,
            f"{group['problems']}",
            _number(group["regret"]["default"], digits=2),
            *_percents(group, names),
        ]
        for name, group in _trust().items()
        if name != "all that it does not"
    ]
    headings = ["family", "problems", "regret in ln MSE", "coverage", "coverage, unflagged", "failures",
                "failures flagged", "good runs alarmed", "silent", "Markov alarms", "flagged"]  # fmt: skip
    return _table(headings, rows)


def trust_told() -> str:
    """The default where it is told the range of rewards, or the behavior."""
    names = ("coverage", "coverage_unflagged", "failures", "silent_failures", "good_alarmed")
    rows = []
    for name, group in _trust().items():
        if name not in ("ruin", "Taxi", MARKOV):
            continue
        told = {"nothing": group} | {what.split(", ")[1]: one for what, one in group["variants"].items()}
        for what, found in told.items():
            # A behavior is known to some problems only: over all families that compares other problems.
            if found["runs"] and not (name == MARKOV and what == "behavior known"):
                width = f"{100 * found['median_width']:.0f}"
                rows.append([name, what, *_percents(found, names), width])
    headings = ["family", "told", "coverage", "coverage, unflagged", "failures", "silent",
                "good runs alarmed", "median width, % of the truth"]  # fmt: skip
    return _table(headings, rows)


def trust_checks() -> str:
    """How often each check fires among failures and among good runs."""
    groups = _trust()
    rows = [
        [name, _number(rate["failures"], 100.0), _number(rate["good"], 100.0)]
        for name, rate in groups[MARKOV]["checks"].items()
    ]
    for family, check in (
        ("unseen causes", "Markov property"),
        ("actions never taken", "never logged"),
        ("careless logs", "order of rows"), ("careless logs", "forgotten ends"),
    ):  # fmt: skip
        rate = groups[family]["checks"].get(check)
        if rate is not None:
            fires = [_number(rate[kind], 100.0) for kind in ("failures", "good")]
            rows.append([f"{check}, in {family}", *fires])
    return _table(["check", "fires, % of failures", "fires, % of good runs"], rows)


def readme_accuracy() -> str:
    """ln MSE of the default and of baselines, and coverage, by family."""
    methods = ("default", "plug-in", "IPS", "average")
    rows = [
        [
            f"{name} ({group['problems']} problems)",
            *(f"{group['ln_mse'][method][0]:.2f}" for method in methods),
            f"{_number(group['coverage'], 100.0)} %",
        ]
        for name, group in _trust().items()
        if name in README_FAMILIES
    ]
    headings = ["off-policy evaluation, behavior unknown", "ln MSE: default", "plug-in", "IPS"]
    return _table([*headings, "plain average", "95 % intervals cover"], rows)


def backtests() -> str:
    """How often splits are inside, and how often drifts are flagged."""
    text = (ROOT / "benchmarks" / "trust" / "results" / "backtests.md").read_text(encoding="utf-8")
    return re.sub(r"^## (.*)$", r"**\1**", text[text.index("## ") :], flags=re.MULTILINE).strip()


README_FAMILIES = (
    "Taxi", "Gymnasium toy text", "networks of queues", "backlogs", "inventory", "clinical",
    "catalogs", "ruin", MARKOV,
)  # fmt: skip


TABLES = {
    "trust-families": trust_families,
    "trust-told": trust_told,
    "trust-checks": trust_checks,
    "backtests": backtests,
    "readme-accuracy": readme_accuracy,
    "speed": speed,
    "accuracy": accuracy,
    "readme-speed": readme_speed,
}


MEASURED_IN = dict.fromkeys(TABLES, "trust") | {
    "speed": "speed", "readme-speed": "speed", "accuracy": "taxi_default",
    "backtests": "trust_backtests",
}  # fmt: skip
"""The results that each table is made of, by their names in benchmarks/provenance.py."""


def table(name: str, *, compare: bool = False) -> str:
    """A table and the version that measured it; with ``compare`` also whether the code is another now."""
    result = MEASURED_IN[name]
    changed = "; the code has changed since" if compare and provenance.is_stale(result) else ""
    return f"{TABLES[name]()}\n\n<small>Measured at {provenance.measured_at(result)}{changed}.</small>"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in the tables, and lead links to notebooks to the pages made from them."""
    markdown = re.sub(r"\((notebooks/\w+)\.ipynb\)", r"(\1.md)", markdown)
    markdown = re.sub(r"(<!-- table:\S+ -->)\n.*?<!-- /table -->", r"\1", markdown, flags=re.DOTALL)
    return re.sub(r"<!-- table:(\S+) -->", lambda found: table(found[1], compare=True), markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Docstrings name what they refer to by roles, of which only the names are shown."""
    return re.sub(r":(?:class|func|meth|mod|data|attr):(?=<code>)", "", html)


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every notebook."""
    from mkdocs.structure.files import File

    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def notebook_page(path: Path) -> str:
    """Cells and outputs of a notebook as Markdown; plots are kept inside of the page."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(output: dict[str, Any]) -> str:
    held = output.get("data", {})
    if "image/png" in held:
        picture = "".join(held["image/png"]).replace("\n", "")
        return f'<img alt="plot" src="data:image/png;base64,{picture}">'
    if "text/html" in held:
        return f"<div>{''.join(held['text/html'])}</div>"
    text = "".join(held.get("text/plain", output.get("text", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def refreshed(text: str) -> str:
    """A page with its tables made anew."""

    def filled(found: re.Match[str]) -> str:
        return f"<!-- table:{found[1]} -->\n{table(found[1])}\n<!-- /table -->"

    return re.sub(r"<!-- table:(\S+) -->\n.*?<!-- /table -->", filled, text, flags=re.DOTALL)


if __name__ == "__main__":
    for filled_page in FILLED:
        filled_page.write_text(refreshed(filled_page.read_text(encoding="utf-8")), encoding="utf-8")
