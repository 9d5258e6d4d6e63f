"""Networks in compiled code: what one thread is to do, one thread does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import os
import sys
import time

import numpy as np

from lingendice.continuous.regression import Fitting, Perceptron, NetworkFit
from lingendice.kernels.blas import add_product

def busy():
    # Clock ticks of every other thread: those of BLAS sleep until they are handed a share of a product.
    ticks = 0
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with open(f"/proc/self/task/{thread}/stat") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks

def at_rest():
    before, now = -1, busy()
    while now != before:
        time.sleep(0.3)
        before, now = now, busy()
    return now

rng = np.random.default_rng(0)
if sys.argv[1] == "network":
    # 32 rows of this layer are 2^19 multiplications.
    net = Perceptron(128, 128, Fitting(steps=10, batch=256, hidden=(128, 128)), 0)
    inputs = rng.normal(size=(512, 128)).astype(np.float32)
    learner = NetworkFit(net, inputs, inputs, np.ones(512, np.float32))
    work = lambda: (learner.advance(100), net(inputs))
else:
    left, right, target = (rng.normal(size=(512, 512)) for _ in range(3))
    keep = np.array([1.0, 0.0])
    work = lambda: [add_product(left, right, keep, target) for _ in range(10)]
work()
if len(os.listdir("/proc/self/task")) == 1:
    print("alone")
    sys.exit()
before, start = at_rest(), time.process_time()
while time.process_time() - start < 1.0:
    work()
print(busy() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed by Linux only")
@pytest.mark.parametrize("work", ["network", "product"])
def test_products_stay_on_the_thread_that_asks(work):
    """BLAS with threads of its own is handed nothing that it would share with them."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", WORK, work], env=env, capture_output=True, text=True, check=True, timeout=300
    )
    if done.stdout.strip() == "alone":
        pytest.skip("BLAS has one thread on one core")
    assert int(done.stdout) <= 2
