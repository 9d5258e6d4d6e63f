"""The page on logs of any size: its Python runs, on small files of the names that it uses."""

from __future__ import annotations

import re
from pathlib import Path

import dask.distributed
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from written_logs import make_log

import lingendice as lg

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.filterwarnings("ignore::lingendice.UnusedColumnWarning")  # columns stand here under two names
def test_page_runs(tmp_path, monkeypatch):
    """All blocks in order, in one namespace; only Spark's own SQL is not run, but what it would write is."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    log = pd.DataFrame(make_log())
    columns = {"state": "s", "action": "a", "reward": "r", "next_state": "s2", "episode": "trip"}
    usual = log.drop(columns=["episode", "terminal"])
    (tmp_path / "log").mkdir()
    (tmp_path / "pairs").mkdir()
    for number, part in enumerate((log[:200], log[200:])):
        part.assign(**{name: part[role] for role, name in columns.items()}).to_parquet(
            tmp_path / "log" / f"{number}.parquet"
        )
    rewards = usual.groupby(["state", "action", "next_state"])["reward"]
    summed = rewards.agg(times="count", reward="mean", reward_m2=lambda r: len(r) * r.var(ddof=0))
    summed.reset_index().to_parquet(tmp_path / "pairs" / "0.parquet")
    monkeypatch.chdir(tmp_path)
    # The page connects to a scheduler; threads of this process stand for its workers.
    monkeypatch.setattr(
        dask.distributed, "Client", lambda address: Client(processes=False, dashboard_address=":0")
    )
    names: dict[str, object] = {"pi": np.full((9, 3), 1 / 3)}
    expected = lg.Counts.from_transitions(**make_log())
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"scale.md, block {number}", "exec"), names)
            counts = names["counts"]
            assert isinstance(counts, (lg.Counts, lg.distributed.DistributedCounts))
            assert counts.total == (expected.total if number < 3 else len(usual))
            solution = names["solution"]
            assert isinstance(solution, lg.Solution)
            assert solution.converged
    finally:
        if isinstance(names.get("client"), Client):
            names["client"].close()
    assert not (tmp_path / "half.npz").exists()
