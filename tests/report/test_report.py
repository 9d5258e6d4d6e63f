"""The report: complete, self-contained, safe; in a real browser, where there is one, fit for any screen."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from logs import logged_mdp

import lingendice as lg
from lingendice.data.display import rounded

pytest.importorskip("matplotlib")

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
VOID = {"meta", "link", "br", "img", "path", "use", "image", "rect", "line", "circle", "defs"}


MDP, COUNTS = logged_mdp()


@pytest.fixture(scope="module")
def solution():
    return lg.solve(COUNTS, 0.9, policy=MDP["policy"])


@pytest.fixture(scope="module")
def page(solution):
    return lg.report(solution, call="lingendice report log.csv", source="log.csv")


class Page(HTMLParser):
    """Checks nesting and collects ids, links and headings."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("href", "xlink:href", "src") if name in given]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_it_says_what_the_solution_says(page, solution):
    interval = solution.interval(0.95)
    for number in (solution.value, interval.low, interval.high):
        assert rounded(number, interval.standard_error) in page
    for check in lg.diagnose(solution):
        assert check.name in page
        assert check.remedy.replace("'", "&#x27;")[1:].rstrip(".") in page
    assert "lingendice report log.csv" in page
    for package in ("lingendice", "numpy", "scipy", "numba", "matplotlib"):
        assert f"{package} " in page


def test_a_path_is_returned_or_a_page_that_notebooks_show(solution, tmp_path):
    path = lg.report(solution, str(tmp_path / "page.html"), plots=False)
    assert path == tmp_path / "page.html"
    page = lg.report(solution, plots=False)
    assert isinstance(page, str)
    shown = page._repr_html_()
    assert shown.startswith("<iframe")
    frame = Page(shown)
    ((tag, given),) = frame.tags
    assert tag == "iframe"
    assert given["srcdoc"] == page
    assert "sandbox" in given  # nothing of it runs


def first_words(result, **options):
    page = lg.report(result, plots=False, **options)
    assert page.index('id="verdict"') < page.index('id="estimate"')
    return unescape(re.search(r'<p class="says">(.*?)</p>', page)[1])


def test_the_verdict_comes_first(solution):
    gain = lg.Comparison(("x",), (solution,)).difference("x", "behavior")
    said = first_words(solution)
    low, high = (rounded(end, gain.standard_error) for end in gain)
    if gain.low > 0 or gain.high < 0:
        more = "more" if gain.low > 0 else "less"
        assert said.startswith(f"The target earns {more} than the logged behavior by ")
    else:
        assert said.startswith("The target is not shown to differ from the logged behavior: ")
        assert f"[{low}, {high}]" in said
    failed = [check.name for check in solution.diagnose() if not check.ok]
    assert said.endswith(f"{', '.join(failed)}." if failed else "all checks pass.")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_verdict_names_a_gain_and_a_loss(sign):
    rng = np.random.default_rng(0)
    walk, action = rng.integers(3, size=3001), rng.integers(2, size=3000)
    counts = lg.Counts.from_transitions(
        walk[:-1], walk[1:], action, sign * action + 0.01 * rng.normal(size=3000),
        np.arange(3000) // 10, keep_episodes=True,
    )  # fmt: skip
    better = np.tile([0.0, 1.0], (3, 1))
    said = first_words(lg.solve(counts, policy=better))
    assert said.startswith(
        f"The target earns {'more' if sign > 0 else 'less'} than the logged behavior by 0.5"
    )
    many = lg.solve(counts, policy={"policy_4": better, "other": better[:, ::-1]})
    page = lg.report(many, plots=False)
    winner = "policy_4" if sign > 0 else "other"
    assert f"{winner} earns more than the logged behavior by 0." in page
    order = [page.index(f'id="{name}"') for name in ("verdict", "differences", "policies", "estimate")]
    assert order == sorted(order)
    assert "the logged behavior" in page
    assert "failed checks" in page


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_no_gain_is_claimed_where_a_check_fails(sign):
    """The headline named a gain beside a warning that ends were forgotten, on which every number rests."""
    rng = np.random.default_rng(0)
    n = 300  # episodes of three steps, whose last one leads to 0 and is always the last
    state, action = np.tile([0, 1, 2], n), rng.integers(2, size=3 * n)
    rows = {
        "state": state, "next_state": (state + 1) % 3, "action": action,
        "reward": sign * action + 0.01 * rng.normal(size=3 * n), "episode": np.repeat(np.arange(n), 3),
    }  # fmt: skip
    better = np.tile([0.0, 1.0], (3, 1))
    forgotten = lg.solve(lg.Counts.from_transitions(**rows, keep_episodes=True), policy=better)
    failed = [check.name for check in forgotten.diagnose() if not check.ok]
    assert "forgotten ends" in failed
    gain = lg.Comparison(("x",), (forgotten,)).difference("x", "behavior")
    assert min(abs(gain.low), abs(gain.high)) > 0.1  # the numbers alone show one
    many = lg.solve(forgotten.operator.counts, policy={"up": better, "down": better[:, ::-1]})
    for result, name in ((forgotten, "The target"), (many, "up" if sign > 0 else "down")):
        said = first_words(result)
        assert said.startswith(
            f"{name} is not shown to differ from the logged behavior, since the estimate fails"
        )
        assert "forgotten ends" in said
        assert " earns " not in said
    assert "Best policy" not in lg.report(many, plots=False)


def test_the_verdict_of_every_other_result():
    assert "no single answer" in first_words(lg.solve([[1, 0], [0, 1]]))
    assert first_words(lg.solve([[3, 1], [1, 1]])).startswith("The stationary distribution is known")
    earned = first_words(lg.solve([[30, 10], [10, 10]], reward=[1.0, 2.0]))
    assert re.match(r"The logged process earns 1\.\d+ \[1\.\d+, 1\.\d+\] per step; ", earned)
    chances = first_words(lg.solve([[0.5, 0.5], [0.2, 0.8]], reward=[1.0, 2.0]))
    assert chances.startswith("The logged process earns 1.71429 per step; ")
    short = lg.solve(np.random.default_rng(0).random((30, 30)), 0.999, method="gauss-seidel", max_iter=1)
    assert first_words(short).startswith("There is no answer to rely on: iteration limit")


def test_policies_over_continuous_states_have_a_page():
    rng = np.random.default_rng(0)
    state = rng.normal(size=(600, 1))
    action = rng.integers(2, size=600)
    log = lg.Transitions(
        state, action, action + 0.1 * state[:, 0], 0.5 * state + 0.1 * rng.normal(size=(600, 1)),
        episode=np.arange(600) // 10,
    )  # fmt: skip
    many = lg.solve(log, 0.5, policy={"one": [0.1, 0.9], "zero": [0.9, 0.1]})
    page = lg.report(many, plots=False)
    assert "one earns more than the logged behavior" in page or "one is not shown to differ" in page
    order = [page.index(f'id="{name}"') for name in ("verdict", "differences", "policies", "estimate")]
    assert order == sorted(order)
    wide, narrow = (lg.report(many["one"], plots=False, level=level) for level in (0.95, 0.8))
    assert "at 95%" in wide
    assert "at 80%" in narrow  # was at 95 %, whatever was asked for


def test_a_report_states_what_it_computed(page):
    assert "computed for this page" in page
    for part in ("intervals in closed form", "all checks", "an audit", "the behavior&#x27;s value"):
        assert part in page


def test_it_needs_nothing_but_itself(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    for link in parsed.links:
        assert link.startswith(("#", "data:")), link
        assert not link.startswith("#") or link[1:] in parsed.ids
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.findall(r"url\((?!#)", page)
    assert not re.findall(r"@import|//[a-z]+\.[a-z]+/.*\.(?:css|js)", page)


def test_it_can_be_read_without_seeing_it(page):
    parsed = Page(page)
    plots = [given for tag, given in parsed.tags if tag == "svg"]
    assert len(plots) >= 4
    assert all(given.get("role") == "img" and given.get("aria-label") for given in plots)
    assert next(given for tag, given in parsed.tags if tag == "html")["lang"] == "en"
    headings = [tag for tag, _ in parsed.tags if re.fullmatch(r"h\d", tag)]
    assert headings[0] == "h1"
    assert set(headings[1:]) == {"h2"}
    assert all("scope" in given for tag, given in parsed.tags if tag == "th")
    scrolling = [given for _, given in parsed.tags if given.get("class") == "scroll"]
    assert scrolling
    assert all(given.get("tabindex") == "0" and given.get("aria-label") for given in scrolling)


def test_colors_follow_the_reader(page):
    assert "prefers-color-scheme: dark" in page
    for plot in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        assert "var(--ink)" in plot
        assert "#24292f" not in plot


@pytest.fixture(scope="module")
def evil_page():
    log = {"state": [EVIL, "b", EVIL], "next_state": ["b", EVIL, EVIL], "action": ["<i>", "go", "go"]}
    counts = lg.Counts.from_transitions(**log, reward=[1, 0, 2], episode=[0, 1, 1])
    many = lg.solve(counts, 0.5, policy={EVIL: [[1, 0], [0, 1]], "other": [[0.5, 0.5]] * 2})
    return lg.report(many, title=EVIL, call=EVIL, source=EVIL)


def test_labels_cannot_inject_html(evil_page):
    parsed = Page(evil_page)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "img", "i")]
    assert not [name for _, given in parsed.tags for name in given if name.startswith("on")]
    assert "&lt;script&gt;" in evil_page


def test_every_kind_of_result_has_a_page(tmp_path):
    chain = lg.report(lg.solve(np.random.default_rng(0).poisson(2.0, (12, 12))))
    assert "95% interval" in chain  # of the distribution
    chances = lg.report(lg.solve([[0.5, 0.5], [0.2, 0.8]]))
    assert "Heaviest cells" in chances
    several = lg.report(lg.solve([[1, 0], [0, 1]]))
    assert "several" in several
    path = lg.report(lg.solve(COUNTS, 0.9, policy=MDP["policy"], method="convex"), tmp_path / "linear.html")
    assert path == tmp_path / "linear.html"
    linear = path.read_text(encoding="utf-8")
    assert "primal-dual gap" in linear
    assert (tmp_path / "linear.html").read_text(encoding="utf-8") == linear
    bare = lg.report(lg.solve([[3, 1], [1, 1]]), plots=False)
    assert "<svg" not in bare
    for page in (chain, chances, several, linear, bare):
        Page(page)


def test_the_same_result_gives_the_same_page(solution):
    def settled():
        return re.sub(r"made [^<]*", "", lg.report(solution))

    assert settled() == settled()


def test_wrong_use_is_named(solution):
    with pytest.raises(ValueError, match="what solve returned"):
        lg.report([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="level"):
        lg.report(solution, level=95)


def run_page(page, **namespace):
    """What the script on a page makes; ``namespace`` holds the data and what is to be supplied."""
    code = unescape(re.search(r'id="again".*?<pre><code>(.*?)</code></pre>', page, re.DOTALL)[1])
    exec(code, namespace)
    return namespace["result"]


POLICY, START = np.full((3, 3), 1 / 3), np.array([0.2, 0.5, 0.3])
FEATURES = np.random.default_rng(1).random((18, 4))


def assert_made_again(again, result):
    """Every number is the same, and so is what the intervals rest on."""
    assert type(again) is type(result)
    seconds = {"seconds"}
    first, second = ({k: v for k, v in one.to_dict().items() if k not in seconds} for one in (again, result))
    assert first == second
    if not again.operator.choices.smoothing:  # with one there is no interval
        assert again.interval().to_dict() == result.interval().to_dict()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ridge": 0},
        {"ridge": 0.01, "tol": 1e-8},
        {"policy": None, "ridge": 0.01},
        {"reward_range": (-10.0, 10.0)},
        {"ratio": "state", "ridge": 0, "behavior": np.full((6, 3), 1 / 3)},
        {"ratio": "state", "ridge": 0, "clone": 2.0},
        {"behavior": np.full((6, 3), 1 / 3)},
        {"ridge": 0, "smoothing": (3.0, np.arange(6) / 15)},
        {"ridge": 0, "unseen": "mean", "leak": "restart", "restart": np.arange(6) / 15},
        {"initial": {0: 0.25, 3: np.float32(0.75)}, "policy": dict.fromkeys(range(6), 1)},
        {"method": "convex"},
        {"method": "convex", "features": FEATURES, "divergence": "kl", "penalty": 2.0, "bound": 3.0},
        {"method": "sgd", "seed": 5, "max_iter": 300, "normalize": "self", "options": {"batch": 64}},
        {"method": "extragradient", "max_iter": 50, "threads": 1},
        {"horizon": 5},
        {"reward": np.linspace(-np.pi, 1e-17, 18).astype(np.float32)},
    ],
    ids=str,
)
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_page_says_how_to_get_the_result_again(options, gamma):
    """It left out most options, and named arrays by their shape."""
    arguments = {"policy": MDP["policy"]} | options
    result = lg.solve(COUNTS, gamma, **arguments)
    page = lg.report(result, plots=False)
    assert_made_again(run_page(page, data=COUNTS), lg.solve(COUNTS, gamma, **arguments))
    pickled = lg.report(pickle.loads(pickle.dumps(result)), plots=False)
    assert_made_again(run_page(pickled, data=COUNTS), lg.solve(COUNTS, gamma, **arguments))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dual_dice", {}), ("gradient_dice", {}), ("best_dice", {}), ("model_based", {}), ("ips", {}),
        ("doubly_robust", {"folds": 3}), ("step_wise", {"weighted": False}), ("trajectory_wise", {}),
        ("per_decision", {}),
    ],
)  # fmt: skip
def test_a_baseline_is_made_again_by_its_own_name(name, options):
    result = getattr(lg.baselines, name)(COUNTS, 0.9, policy=MDP["policy"], **options)
    page = lg.report(result, plots=False)
    assert f"lg.baselines.{name}(" in page
    again = run_page(page, data=COUNTS)
    assert (again.method, again.value) == (result.method, result.value)


def test_several_policies_are_made_again():
    policies = {"it's": MDP["policy"], "even": np.full((6, 3), 1 / 3)}
    for given in (policies, list(policies.values()), np.stack(list(policies.values()))):
        result = lg.solve(COUNTS, 0.9, policy=given)
        again = run_page(lg.report(result, plots=False), data=COUNTS)
        assert again.names == result.names
        np.testing.assert_array_equal(again.values, result.values)
        for name in result.names:
            alone = run_page(lg.report(result[name], plots=False), data=COUNTS)
            assert alone.value == result[name].value


def test_what_is_not_written_out_is_named():
    def careful(state):
        return [0.5, 0.25, 0.25]

    result = lg.solve(COUNTS, 0.9, policy=careful)
    page = lg.report(result, plots=False)
    assert "a function, to be supplied" in page
    assert run_page(page, data=COUNTS, policy=careful).value == result.value
    wide = np.random.default_rng(0).random((18, 60))
    result = lg.solve(COUNTS, 0.9, policy=MDP["policy"], features=wide, method="sgd", max_iter=20)
    page = lg.report(result, plots=False)
    assert "a numpy.ndarray of shape 18 x 60, to be supplied" in page
    assert run_page(page, data=COUNTS, features=wide, policy=None).value == result.value
    many = np.tile(MDP["policy"], (60, 1, 1))
    together = lg.solve(COUNTS, 0.9, policy=many)
    assert run_page(lg.report(together, plots=False), data=COUNTS, policy=many).names == together.names
    page = lg.report(together[1], plots=False)
    assert "the policy 1 of those compared, to be supplied" in page
    assert run_page(page, data=COUNTS, policy=many[1]).value == together[1].value
    by_hand = lg.Comparison(("x",), (lg.solve(COUNTS, 0.9, policy=MDP["policy"]),))
    assert "not returned by a public function" in lg.report(by_hand, plots=False)
    assert "made by hand" in lg.report(by_hand, plots=False, call="made by hand")


def test_networks_are_made_again():
    rng = np.random.default_rng(0)
    state, action = rng.normal(size=(200, 1)), rng.integers(2, size=200)
    log = lg.Transitions(state, action, action + state[:, 0], 0.5 * state, episode=np.arange(200) // 10)
    result = lg.solve(log, 0.5, policy=[0.1, 0.9], method="gendice", max_iter=20, seed=3)
    page = lg.report(result, plots=False)
    np.testing.assert_array_equal(run_page(page, data=log).tau, result.tau)


def test_what_is_changed_later_is_written_as_it_was():
    policy, initial = MDP["policy"].copy(), {0: 1.0}
    result = lg.solve(COUNTS, 0.9, policy=policy, initial=initial)
    policy[:], initial[0] = 1 / 3, 0.5
    assert run_page(lg.report(result, plots=False), data=COUNTS).value == result.value


# -- in a browser ---------------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("LINGENDICE_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser found: install one of {', '.join(BROWSERS)}")
    return path


def run_browser(browser, folder, page, script, width, dark=False):
    """The page's own policy forbids scripts: a frame around it looks in and tells in its own title."""
    inner = page.replace("http-equiv", "data-was")  # a frame's document may then be measured
    (folder / "inner.html").write_text(inner, encoding="utf-8")
    frame = (
        f'<!doctype html><title>wait</title><iframe id="f" src="inner.html" style="border:0;width:{width}px;'
        f'height:4000px"></iframe><script>{script}</script>'
    )
    (folder / "frame.html").write_text(frame, encoding="utf-8")
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width},4000", 
        "--hide-scrollbars", "--virtual-time-budget=4000",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr", "--v=0",
        "--dump-dom", (folder / "frame.html").as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


MEASURE = """
const frame = document.getElementById("f");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, root = inside.documentElement;
  const past = [...inside.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg")
    && !e.closest(".skip") && e.getBoundingClientRect().right > root.clientWidth + 1);
  const style = frame.contentWindow.getComputedStyle(inside.body);
  console.log("measured");
  document.title = JSON.stringify({
    scroll: root.scrollWidth, client: root.clientWidth, past: past.length, paper: style.backgroundColor,
    ink: style.color, sections: inside.querySelectorAll("section").length,
    plots: [...inside.querySelectorAll("svg")].filter(e => e.getBoundingClientRect().width > 200).length
  });
});
"""


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1440, False)])
def test_no_overflow_and_no_console_errors(browser, tmp_path, solution, evil_page, width, dark):
    for k, text in enumerate((lg.report(solution), evil_page)):
        folder = tmp_path / str(k)
        folder.mkdir()
        done = run_browser(browser, folder, text, MEASURE, width, dark)
        (said,) = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert "measured" in said  # the frame's own word, so that silence means silence
        title = unescape(re.search(r"<title>(.*?)</title>", done.stdout, flags=re.DOTALL)[1])
        found = json.loads(title)
        assert found["scroll"] <= found["client"] == width, found
        assert found["past"] == 0
        assert found["plots"] >= 4
        assert found["sections"] >= 5
        bright = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) > 384
        assert bright is not dark


def test_the_page_itself_loads_without_a_word_on_the_console(browser, tmp_path, page):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr", "--v=0", "--window-size=1440,3000", 
        f"--screenshot={tmp_path / 'shot.png'}", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert (tmp_path / "shot.png").stat().st_size > 20_000


def test_a_second_page_of_a_solution_is_the_first_one():
    """Facts leave out what checks tell, whether or not those had been run before the page was asked for."""
    solution = lg.solve([[90, 10], [30, 70]])
    first, second = (re.sub(r"\d\d:\d\d UTC", "", lg.report(solution, plots=False)) for _ in range(2))
    assert first == second
