"""``saki eval tables FOLDER ...``: finished evaluations of runs and models, as the results and tables of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from saki.analysis.metrics_file import merge_steps, read_metrics
from saki.analysis.run_facts import read_settings
from saki.analysis.study_folder import DEFAULT_REFERENCE, METRICS, RESULTS, read_study_folder
from saki.analysis.study_results import SetScore, write_results
from saki.analysis.study_tables import study_tables, write_tables
from saki.cli.console import fresh_folder, print_json
from saki.cli.eval_folder import INPUTS, SAMPLES, finished_evaluation, read_inputs
from saki.config import UsageError
from saki.config.commands import EvalTablesArguments
from saki.config.paths import PathsParser
from saki.config.study import STUDENT, TEACHER, folder_name
from saki.evaluation import read_samples
from saki.files import write_text

SUMMARY = (
    "Tables 1, 2, 6 and 8 of the paper out of finished evaluations, with intervals over seeds and problems. A run with "
    "its evaluation inside (RUN/evaluation) gives method, student and seed; the evaluations of the teacher and of "
    "untrained students are known by their models. saki figures draws Figure 3 of the folder it writes."
)
EXAMPLE = "saki eval tables runs/paper/*_1.7b runs/paper/teacher --out runs/paper/tables"

EVALUATION, CONFIG = "evaluation", "config.resolved.yaml"
SAME = ("num_samples", "max_new_tokens", "temperature", "benchmarks")
"""Inputs in which evaluations must agree to stand in one table."""


@dataclass(frozen=True)
class Evaluated:
    """One finished evaluation.

    Attributes:
        folder: Its folder.
        model: What it evaluated, as it was named.
        benchmarks: Their names.
        run: Folder of the run that trained the model; None for a model alone.
        settings: The run's settings, by dotted name.
        label: Given on the command line; None to take the run's method.
    """

    folder: Path
    model: str
    benchmarks: list[str]
    run: Path | None
    settings: dict[str, str]
    label: str | None


def parser() -> PathsParser:
    """The command's options; folders come before them."""
    what = "folders of runs with their evaluations, or of evaluations"
    return PathsParser(EvalTablesArguments, "saki eval tables FOLDER ...", SUMMARY, EXAMPLE, what)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    paths, args = parser().parse(argv)
    found = [evaluated(path) for path in dict.fromkeys(paths)]
    out = fresh_folder(args.out, "saki eval tables")
    check_alike(found)
    scores = [score for each in found for score in scores_of(each, found)]
    labels = list(dict.fromkeys(score.label for score in scores if score.label not in (TEACHER, STUDENT)))
    if not labels:
        raise UsageError("there is no evaluation of a trained student among these folders; name a run with its own")
    if args.reference not in (None, *labels):
        raise UsageError(f"reference {args.reference!r} is none of {', '.join(labels)}")
    reference = args.reference or (DEFAULT_REFERENCE if DEFAULT_REFERENCE in labels else labels[0])
    out.mkdir(parents=True, exist_ok=True)
    write_results(out / RESULTS, scores)
    tables = study_tables(read_study_folder(out).arms(), reference, scores[0].num_samples)
    written = write_tables(out / "tables", tables)
    write_text(out / "tables.md", "\n".join(table.markdown() for table in tables))
    print("\n".join(table.markdown() for table in tables))
    print(f"{len(found)} evaluations; results: {out / RESULTS}   tables: {out / 'tables.md'}")
    if args.json:
        print_json(
            {"evaluations": len(found), "results": str(out / RESULTS), "tables": [str(each) for each in written]}
        )
    return 0


def evaluated(path: Path) -> Evaluated:
    """Find the evaluation that a word of the command line means: ``FOLDER`` or ``LABEL=FOLDER``.

    Raises:
        UsageError: If there is none, or it is not finished.
    """
    label, sign, rest = str(path).partition("=")
    if sign and "/" not in label and not path.exists():
        path = Path(rest)
    else:
        label = ""
    inside = path / EVALUATION
    folder = inside if (inside / SAMPLES).is_dir() else path
    if not (folder / SAMPLES).is_dir():
        raise UsageError(
            f"{path} holds no evaluation with samples, nor does {inside}; run saki eval --model {path}/model --out "
            f"{inside}"
        )
    model, benchmarks = finished_evaluation(folder)
    for run in (path, folder.parent):
        settings = read_settings(run / CONFIG) or {}
        if "method" in settings:
            return Evaluated(folder, model, benchmarks, run, settings, label or None)
    return Evaluated(folder, model, benchmarks, None, {}, label or None)


def check_alike(found: Sequence[Evaluated]) -> None:
    """Refuse to compare what was measured in different ways.

    Raises:
        UsageError: If problems, samples, lengths or temperatures differ.
    """
    first, *others = [(each.folder, read_inputs(each.folder)) for each in found]
    for folder, inputs in others:
        for name in SAME:
            mine, theirs = inputs.get(name), first[1].get(name)
            if mine != theirs:
                what = "other problems" if name == "benchmarks" else f"{name} {mine}, not {theirs}"
                raise UsageError(
                    f"{folder} was evaluated with {what}, unlike {first[0]} ({INPUTS}); evaluate all alike, or leave "
                    "one out"
                )


def scores_of(each: Evaluated, found: Sequence[Evaluated]) -> list[SetScore]:
    """The scores of one evaluation, under the student and label that it belongs to.

    Raises:
        UsageError: If another evaluation has the same student, label and seed, or a model alone is nobody's.
    """
    student, label, seed = _place(each, found)
    for other in found[: found.index(each)]:
        if _place(other, found) == (student, label, seed):
            raise UsageError(
                f"{other.folder} and {each.folder} are both {label} of {student} with seed {seed}; tell them apart by "
                f"a label, as in {label}-2={each.folder}"
            )
    scores = []
    for name in each.benchmarks:
        samples = read_samples(each.folder / SAMPLES, name)
        result = samples.summarise(None)
        scores.append(
            SetScore(
                student=student,
                label=label,
                method=each.settings.get("method", ""),
                seed=seed,
                step=_steps(each.run),
                benchmark=name,
                num_samples=samples.num_samples,
                num_right=tuple(int(count) for count in result.correct.sum(axis=1)),
                truncated=result.truncated,
                train_cpu_seconds=0.0,
                evaluation_cpu_seconds=0.0,
                fingerprint="",
            )
        )
    return scores


def _place(each: Evaluated, found: Sequence[Evaluated]) -> tuple[str, str, int]:
    if each.run is not None:
        settings = each.settings
        return folder_name(settings["model"]), each.label or settings["method"], int(settings["seed"])
    for other in found:
        for key, label in (("teacher_model", TEACHER), ("model", STUDENT)):
            if each.model == other.settings.get(key):
                return folder_name(other.settings["model"] if label == STUDENT else each.model), label, 0
    if each.label is not None:
        return folder_name(each.model), each.label, 0
    raise UsageError(
        f"{each.folder} evaluated {each.model}, which is neither the teacher nor the untrained student of a run here; "
        f"give it a label, as in LABEL={each.folder}, or leave it out"
    )


def _steps(run: Path | None) -> int:
    """Steps that a run has taken."""
    if run is None or not (run / METRICS).is_file():
        return 0
    return max((int(row["step"]) for row in merge_steps(read_metrics(run / METRICS))), default=0)
