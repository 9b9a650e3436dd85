"""``saki figures SOURCE ...``: figures for print out of studies, runs and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saki.analysis.benchmark_figure import rollout_drawing
from saki.analysis.figure3 import draw_figure3
from saki.analysis.figure4 import draw_figure4, is_guided
from saki.analysis.learning_curves import draw_learning_curves
from saki.analysis.metrics_file import merge_steps, read_metrics
from saki.analysis.publication import Drawing, publish
from saki.analysis.step_times import benchmark_steps, draw_step_times, run_steps
from saki.analysis.study_folder import METRICS, StudyFolder, is_study, read_study_folder
from saki.cli.console import holdings, print_json
from saki.config.figures import FiguresArguments
from saki.config.parsing import UsageError
from saki.config.paths import PathsParser
from saki.types.exact import did_you_mean

SUMMARY = (
    "Draw figures for print (SVG, PDF, PNG, and their numbers as CSV): of a study Figure 3, Figure 4 and learning "
    "curves, of a run Figure 4 and the seconds of a step, of the JSON of saki bench rollout or train its bars."
)
EXAMPLE = "saki figures runs/study docs/results/benchmarks/tiny8.json --out figures"

MOST_ARMS = 12
"""Most arms of one picture unless they are named: more cannot be told apart."""
_METHOD = "saki"


def parser() -> PathsParser:
    """The command's options; sources come before them."""
    what = "a study, a run or a benchmark's JSON"
    return PathsParser(FiguresArguments, "saki figures SOURCE ...", SUMMARY, EXAMPLE, what)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    paths, args = parser().parse(argv)
    out = Path(args.out) if args.out else _home(paths[0]) / "figures"
    if paths[0].exists():  # one that is absent is told below
        holdings(out)
    drawings: list[Drawing] = []
    left_out: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        found, absent = drawings_of(path, args)
        drawings += [_named_apart(each, path, drawings) for each in found]
        left_out |= {f"{what} of {path}": why for what, why in absent.items()}
    for what, why in left_out.items():
        print(f"not drawn: {what}: {why}")
    if not drawings:
        raise UsageError(f"nothing could be drawn, for example {'; '.join(list(left_out.values())[:1])}")
    written = publish(out, drawings)
    names = [drawing.name for drawing in drawings]
    print(f"{', '.join(names)}: {len(written)} files in {out}")
    if args.json:
        print_json({"figures": names, "files": [str(path) for path in written], "left_out": left_out})
    return 0


def drawings_of(path: Path, args: FiguresArguments) -> tuple[list[Drawing], dict[str, str]]:
    """Everything that can be drawn of one source.

    Args:
        path: Folder of a study or of a run, or a benchmark's JSON.
        args: The options.

    Returns:
        The drawings, and by name of a figure why it is not among them.

    Raises:
        ValueError: If the source is none of these, or is damaged.
    """
    if path.is_dir() and is_study(path):
        return _of_study(read_study_folder(path), args)
    if path.is_dir():
        return _of_run(path)
    return [_of_benchmark(path)], {}


def _of_study(study: StudyFolder, args: FiguresArguments) -> tuple[list[Drawing], dict[str, str]]:
    if not study.labels:
        raise ValueError(f"{study.folder} holds no run that has logged a step or is finished; run the study first")
    for name, label in (
        ("method", args.method),
        ("reference", args.reference),
        *(("only", x) for x in args.labels or ()),
    ):
        if label is not None and label not in study.labels:
            hint = did_you_mean(label, study.labels, f"choose one of {', '.join(study.labels)}")
            raise UsageError(f"{name} names {label!r}, which is no arm of {study.folder}; {hint}")
    drawings: list[Drawing] = []
    left_out: dict[str, str] = {}
    k = study.scores[0].num_samples if study.scores else 0
    reference = args.reference or study.reference
    others = [label for label in study.labels if label != reference]
    method = args.method or (_METHOD if _METHOD in others else others[-1] if others else _METHOD)
    curves = args.labels or study.labels[:MOST_ARMS]
    if len(curves) < len(study.labels) and args.labels is None:
        left_out["learning curves"] = (
            f"{len(study.labels) - len(curves)} arms beyond the first {MOST_ARMS}; --only names others"
        )
    guided = args.labels or ([method] if any(label == method for _, label in study.runs) else study.labels[:MOST_ARMS])
    students = list(dict.fromkeys(student for student, _ in study.runs))
    of_runs = {
        label if len(students) == 1 else f"{label}, {student}": list(study.metrics(student, label).values())
        for student in students
        for label in guided
        if (student, label) in study.runs
    }
    for name, draw in (
        ("figure3", lambda: draw_figure3(study.arms(), method, reference, args.placement, k)),
        ("figure4", lambda: draw_figure4(of_runs)),
        ("learning_curves", lambda: draw_learning_curves({s: study.arms(s, curves) for s in study.steps()}, k)),
    ):
        try:
            drawings.append(draw())
        except ValueError as error:
            left_out[name] = str(error)
    return drawings, left_out


def _of_run(folder: Path) -> tuple[list[Drawing], dict[str, str]]:
    if not folder.is_dir() or not (folder / METRICS).is_file():
        raise UsageError(
            f"{folder} is neither a study nor a run: it holds no results.parquet, study.yaml or {METRICS}; give the "
            "folder of saki study or saki train, or the JSON of saki bench"
        )
    rows = merge_steps(read_metrics(folder / METRICS))
    drawings = [draw_step_times({folder.resolve().name: run_steps(rows)})]
    if is_guided(rows):
        return [draw_figure4({"": [rows]}), *drawings], {}
    return drawings, {"figure4": "the run logged no correction rate with a bound above 0"}


def _of_benchmark(path: Path) -> Drawing:
    if not path.is_file():
        raise UsageError(f"there is no {path}; give the folder of a study or of a run, or the JSON of saki bench")
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text:
        raise ValueError(f"{path} is empty; expected the last line of saki bench rollout or train under --json")
    try:
        result: Any = json.loads(text)
        arms = result["arms"]
        trained = any("step_s" in arm for arm in arms.values())
        drawn = draw_step_times(benchmark_steps(result)) if trained else rollout_drawing(result)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is not what saki bench rollout or train prints under --json ({reason}); give that, or the folder "
            "of a study or of a run"
        ) from error
    return Drawing(f"{drawn.name}_{path.stem}", drawn.figure, drawn.header, drawn.rows)


def _named_apart(drawing: Drawing, source: Path, others: Sequence[Drawing]) -> Drawing:
    """The drawing, with its source in the name where another has that name already."""
    names = {each.name for each in others}
    name, count = drawing.name, 1
    while name in names:
        name = f"{drawing.name}_{source.resolve().stem}" + ("" if count == 1 else f"-{count}")
        count += 1
    return Drawing(name, drawing.figure, drawing.header, drawing.rows)


def _home(path: Path) -> Path:
    return path if path.is_dir() else path.parent
