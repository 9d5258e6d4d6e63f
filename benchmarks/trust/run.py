"""Judge the default of ``solve`` on the suite and print the tables.

    python benchmarks/trust/run.py [--development | --report] [--logs 40] [--workers 2] [--quick]
                                   [--budget 30] [--families NAME ...] [--seed 0] [--list]

Rows are kept as they are made, under runs/, by the sources that made them: a run that was stopped goes on
where it was, and a change of the library begins anew. The tables and the summary go to results/.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# One process per core: threads of BLAS on top of that would only wait for each other. NumPy reads this once.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
# The suite is the package "trust"; the repository's own library comes before an installed one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trust.suite import main

if __name__ == "__main__":
    main()
