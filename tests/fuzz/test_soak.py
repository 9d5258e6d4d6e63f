"""Ctrl-C, kills and forks at random moments: nothing is lost, nothing hangs, nothing is left half written.

``python tests/fuzz/test_soak.py [seed]`` prints the table of docs/reliability.md. Everything runs in children
that are forked from one process after it has used its thread pool, so that every event is one of a fork too.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import lingendice as lg
from lingendice.data import interrupts, saving

SEED = 0
INTERRUPTS, KILLS, FORKS = 14, 12, 24  # events of each kind
DEADLINE = 30.0  # seconds for one event, on a busy machine
WHOLE = 600.0


# -- work -------------------------------------------------------------------------------------------------


def chain(n, degree=5):
    rng = np.random.default_rng(0)
    after = np.column_stack([rng.integers(0, n, (n, degree)), np.roll(np.arange(n), -1)])
    return lg.Counts.from_transitions(np.repeat(np.arange(n), degree + 1), after.ravel())


def log(rows=6000, n_states=40):
    rng = np.random.default_rng(1)
    states = rng.integers(0, n_states, rows + 1)
    action, reward = rng.integers(0, 2, rows), rng.random(rows)
    episode = np.arange(rows) // 20
    return lg.Counts.from_transitions(
        states[:-1], states[1:], action=action, reward=reward, episode=episode, keep_episodes=True
    )


def batches(number=40, size=3000):
    rng = np.random.default_rng(2)
    for _ in range(number):
        states, following = rng.integers(0, 300, (2, size))
        yield {"state": states, "next_state": following, "reward": rng.random(size)}


def undated(page):
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page)


class Material:
    """What the work is done on; made once, before anything is forked."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(3)
        self.folder = folder
        self.small, self.middle, self.large = chain(350), chain(1500), chain(20_000)
        self.log = log()
        self.policies = {name: rng.dirichlet(np.ones(2), 40) for name in range(12)}
        self.features = rng.random((350, 30))
        self.rows = rng.integers(0, 700, (2, 400_000))
        state = rng.standard_normal((1001, 2))
        self.transitions = lg.Transitions(state[:-1], None, rng.random(1000), state[1:])
        self.evaluated = lg.solve(self.log, 0.9, policy=self.policies[0], ridge=0)
        self.versions = [lg.Counts.from_matrix(np.full((300, 300), k)) for k in (1, 2, 3)]
        solved = lg.solve([[90, 10], [30, 70]])
        self.pages = [undated(lg.report(solved, title=title, plots=False)) for title in "abc"]
        self.write_page = [partial(lg.report, solved, title=title, plots=False) for title in "abc"]

    def eliminate(self):
        return lg.solve(self.middle, method="elimination")

    def eliminate_shortly(self):
        return lg.solve(self.small, method="elimination", threads=1)

    def sweep(self):
        return lg.solve(self.large, 0.999, method="gauss-seidel", threads=2)

    def step(self):
        return lg.solve(
            self.small, 0.9, features=self.features, bound=5.0, method="sgd", tol=1e-12, max_iter=4000,
            threads=2, options={"batch": 256},
        )  # fmt: skip

    def ridge(self):
        return lg.solve(self.log, 0.9, policy=self.policies[0])

    def train(self, **options):
        chosen = {"hidden": (16,), "batch": 64, "holdout": 0.0, **options}
        return lg.solve(self.transitions, 1.0, method="gendice", max_iter=60, threads=1, options=chosen)

    def compare(self):
        return lg.solve(self.log, 0.9, policy=self.policies, ridge=0, threads=2)

    def bootstrap(self):
        return self.evaluated.interval(method="bootstrap", replicates=400, threads=2)

    def count(self):
        return lg.Counts.from_transitions(*self.rows, threads=2)

    def stream(self):
        online = lg.OnlineRatio(60)
        for part in np.array_split(self.rows[:, :60_000] % 60, 30, axis=1):
            online.update(*part)
            _ = online.stationary
        return online.snapshot()

    def read(self):
        return lg.read_transitions(batches(), threads=2)


def same(found: Any, expected: Any) -> bool:
    """Equal up to the tolerance of what was asked."""
    if isinstance(found, lg.Counts):
        return bool(found == expected)
    for name in ("tau", "values", "low"):
        if hasattr(found, name):
            return bool(np.allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, equal_nan=True))
    raise TypeError(type(found).__name__)


INTERRUPTED = {
    "short eliminations": Material.eliminate_shortly,
    "elimination": Material.eliminate,
    "Gauss-Seidel": Material.sweep,
    "SGD": Material.step,
    "ridge": Material.ridge,
    "networks": Material.train,
    "comparison": Material.compare,
    "bootstrap": Material.bootstrap,
    "counting": Material.count,
    "stream": Material.stream,
    "reading": Material.read,
}


# -- children ---------------------------------------------------------------------------------------------


class Child(NamedTuple):
    """A forked process, and what it says."""

    pid: int
    said: int

    @classmethod
    def begin(cls, work: Callable[[Callable[[str], None]], None]) -> Child:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return cls(pid, reading)
        code = 1
        try:
            os.close(reading)
            work(lambda word: os.write(writing, f"{word} {time.monotonic()}\n".encode()) and None)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def hear(self) -> tuple[str, float]:
        """The next word and when it was said; an error after the deadline."""
        line, limit = b"", time.monotonic() + DEADLINE
        os.set_blocking(self.said, False)
        while not line.endswith(b"\n"):
            try:
                got = os.read(self.said, 1)
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise TimeoutError("a child is silent") from None
                time.sleep(0.0005)
                continue
            if not got:
                raise EOFError("a child has ended")
            line += got
        word, at = line.decode().rsplit(" ", 1)
        return word, float(at)

    def end(self, number: int | None = None) -> int:
        """Its exit status, after a signal if one is given."""
        if number is not None:
            os.kill(self.pid, number)
        limit = time.monotonic() + DEADLINE
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > limit:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError("a child does not end")
            time.sleep(0.001)
        os.close(self.said)
        return ended[1]


# -- events -----------------------------------------------------------------------------------------------


def interrupt(material: Material, name: str, rng: random.Random) -> dict[str, float]:
    """Press Ctrl-C amid some work, again and again."""
    work = partial(INTERRUPTED[name], material)
    began = time.monotonic()
    expected = work()
    lasts = time.monotonic() - began

    def repeat(say):
        for _ in range(INTERRUPTS):
            stop = until_interrupted(work, say)
            say("caught")
            check(stop, expected)
            assert same(work(), expected), "the work was not the same afterwards"
            say("checked")

    child = Child.begin(repeat)
    late = []
    for _ in range(INTERRUPTS):
        assert child.hear()[0] == "begun"
        time.sleep(rng.uniform(0.0, 2.0 * lasts))
        sent = time.monotonic()
        os.kill(child.pid, signal.SIGINT)
        word, at = child.hear()
        assert word == "caught"
        late.append(at - sent)
        assert child.hear()[0] == "checked"
    assert child.end() == 0
    return {"events": INTERRUPTS, "longest wait": max(late)}


def until_interrupted(work, say):
    try:
        say("begun")
        while True:
            work()
    except KeyboardInterrupt as stop:
        return stop


def check(stop: KeyboardInterrupt, expected: Any) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupts._outer() is None
    solution = getattr(stop, "solution", None)
    if isinstance(solution, lg.Solution):
        assert np.isfinite(solution.stationary).all()
        if type(solution) is type(expected) and solution.status is expected.status:
            assert same(solution, expected), "a finished solution differs"


def kill(write: Callable[[int], object], verify: Callable[[], None], rng: random.Random) -> dict[str, float]:
    """Kill a process that writes a file over and over: what is there is whole, and the next one goes on."""
    write(0)  # what is imported and compiled at first is no event
    for _ in range(KILLS):

        def write_on(say):
            say("begun")
            number = 0
            while True:
                write(number % 3)
                number += 1

        child = Child.begin(write_on)
        assert child.hear()[0] == "begun"
        time.sleep(rng.uniform(0.0, 0.08))
        assert os.WTERMSIG(child.end(signal.SIGKILL)) == signal.SIGKILL
        verify()
    return {"events": KILLS}


def killed_writers(material: Material, folder: Path) -> dict[str, tuple[Callable, Callable]]:
    """By kind of file: how version k is written, and what must hold after a kill."""
    npz, parquet, page = folder / "counts.npz", folder / "counts.parquet", folder / "page.html"
    training = folder / "training.npz"
    whole = material.train(report_every=5)

    def version_of(path):
        assert not path.exists() or lg.Counts.load(path) in material.versions

    def page_is_whole():
        assert not page.exists() or undated(page.read_text(encoding="utf-8")) in material.pages

    def training_goes_on():
        found = material.train(report_every=5, checkpoint=training, resume=True)
        np.testing.assert_array_equal(found.tau, whole.tau)
        training.unlink()

    def train_on(_):
        training.unlink(missing_ok=True)
        material.train(report_every=5, checkpoint=training)

    return {
        "counts (npz)": (lambda k: material.versions[k].save(npz), lambda: version_of(npz)),
        "counts (Parquet)": (lambda k: material.versions[k].save(parquet), lambda: version_of(parquet)),
        "report": (lambda k: material.write_page[k](page), page_is_whole),
        "checkpoint of training": (train_on, training_goes_on),
    }


def fork(material: Material, rng: random.Random) -> dict[str, float]:
    """Children of a process that has used its pool do what it did, in any order."""
    known = {name: partial(INTERRUPTED[name], material) for name in INTERRUPTED if name != "reading"}
    expected = {name: work() for name, work in known.items()}
    for _ in range(FORKS):
        names = rng.sample(sorted(known), 3)

        def do(say, names=names):
            for name in names:
                assert same(known[name](), expected[name]), name

        assert Child.begin(do).end() == 0
    return {"events": FORKS}


def soak(folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """All events by kind."""
    rng = random.Random(seed)
    material = Material(folder)
    found = {f"Ctrl-C: {name}": interrupt(material, name, rng) for name in INTERRUPTED}
    for name, (write, verify) in killed_writers(material, folder).items():
        before = set(folder.glob(f"{saving.PREFIX}*"))
        found[f"SIGKILL: {name}"] = kill(write, verify, rng)
        found[f"SIGKILL: {name}"]["left"] = len(set(folder.glob(f"{saving.PREFIX}*")) - before)
    found["fork"] = fork(material, rng)
    for part in folder.glob(f"{saving.PREFIX}*"):
        os.utime(part, (0, 0))
    material.versions[0].save(folder / "last.npz")
    assert not list(folder.glob(f"{saving.PREFIX}*")), "what was abandoned is still there"
    return found


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else SEED)
    for kind, facts in found.items():
        wait = f", heard within {facts['longest wait']:.3f} s" if "longest wait" in facts else ""
        left = f", {facts['left']:.0f} unfinished files left" if "left" in facts else ""
        print(f"{kind:32} {facts['events']:4.0f} events{wait}{left}")
    total = sum(facts["events"] for facts in found.values())
    print(f"{total:.0f} events in {time.monotonic() - began:.0f} s: none lost, none hanging", flush=True)
    print(json.dumps(found), flush=True)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_soak():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=WHOLE)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(facts["events"] for facts in found.values()) >= 200
    assert max(facts.get("longest wait", 0.0) for facts in found.values()) < 5.0


if __name__ == "__main__":
    main()
