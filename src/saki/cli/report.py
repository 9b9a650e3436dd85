"""``saki report RUN ...``: one run, several runs side by side, or a study, as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from saki.analysis.comparison_report import write_comparison_report, write_study_report
from saki.analysis.report import REPORT, write_report
from saki.analysis.rollout_samples import Decode
from saki.analysis.study_folder import is_study
from saki.cli.console import page_target, print_json
from saki.cli.view import run_settings, run_tokenizer
from saki.config.parsing import UsageError
from saki.config.paths import PathsParser
from saki.config.report import ReportArguments

SUMMARY = (
    "Write what a run did as one HTML page without network: settings, accuracy, losses, corrections, speed, samples. "
    "Several runs, and the arms of a study with intervals over seeds, stand side by side."
)
EXAMPLE = "saki report runs/saki-1 runs/trb-1 -o comparison.html"
COMPARISON = "comparison.html"


def parser() -> PathsParser:
    """The command's options; folders come before them."""
    return PathsParser(ReportArguments, "saki report RUN ...", SUMMARY, EXAMPLE, "the folder of a run or of a study")


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    paths, args = parser().parse(argv)
    folders = list(dict.fromkeys(path.resolve() for path in paths))
    for path in paths:
        if path.is_file():
            raise UsageError(f"{path} is a file; saki report takes the folder of a run or of a study")
    studies = [path for path in paths if is_study(path)]
    if studies and len(folders) > 1:
        raise UsageError(f"{studies[0]} is a study; give one study alone, or runs, such as those in {studies[0]}/runs")
    several = Path(os.path.commonpath([path.parent for path in folders])) / COMPARISON
    out = Path(args.out) if args.out else several if len(folders) > 1 else paths[0] / REPORT
    if paths[0].is_dir():  # one that is absent is told below
        page_target(out)
    if studies:
        page = write_study_report(studies[0], out)
    elif len(folders) > 1:
        page = write_comparison_report(folders, out)
    else:
        page = write_report(paths[0], decode=_decode(paths[0], args.model), path=out)
    kind = "study" if studies else "runs" if len(folders) > 1 else "run"
    print(f"report of {'1 ' if kind != 'runs' else f'{len(folders)} '}{kind}: {page}")
    if args.json:
        print_json({"kind": kind, "folders": [str(path) for path in paths], "report": str(page)})
    return 0


def _decode(folder: Path, model: str | None) -> Decode | None:
    """Token ids to text, where there are samples to show and a tokenizer is to be had."""
    if not any((folder / "rollouts").glob("*.parquet")):
        return None
    tokenizer = run_tokenizer([folder], [run_settings(folder)], model)
    return None if tokenizer is None else lambda ids: str(tokenizer.decode(ids))
