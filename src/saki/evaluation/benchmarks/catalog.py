"""The benchmarks that ship by name."""

from __future__ import annotations

from saki.evaluation.benchmarks.aime25 import AIME25
from saki.evaluation.benchmarks.aime26 import AIME26
from saki.evaluation.benchmarks.amc23 import AMC23
from saki.evaluation.benchmarks.hmmt_feb25 import HMMT_FEB25
from saki.evaluation.benchmarks.hmmt_feb26 import HMMT_FEB26
from saki.evaluation.benchmarks.math500 import MATH500
from saki.evaluation.benchmarks.minerva import MINERVA
from saki.evaluation.benchmarks.olympiadbench import OLYMPIADBENCH

PAPER_BENCHMARKS = (MATH500, HMMT_FEB26, AIME26, AIME25, AMC23, MINERVA, OLYMPIADBENCH)
"""The seven of the paper's tables, in their order."""

BENCHMARKS = {spec.name: spec for spec in (*PAPER_BENCHMARKS, HMMT_FEB25)}
"""Every shipped benchmark by name."""
