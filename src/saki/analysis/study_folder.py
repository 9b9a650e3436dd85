"""A study's folder as figures and reports read it: scores, runs by arm, and what the arms are compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from saki.analysis.figures import Rows
from saki.analysis.metrics_file import merge_steps, read_metrics
from saki.analysis.study_results import RESULT, SetScore, by_run, gather, read_results, run_scores
from saki.analysis.study_tables import UNTRAINED, Arms

STUDY, RESULTS, METRICS = "study.yaml", "results.parquet", "metrics.jsonl"
TEACHER = UNTRAINED[0]
DEFAULT_REFERENCE = "trb"


@dataclass(frozen=True)
class StudyFolder:
    """What lies in the folder of a study.

    Attributes:
        folder: The folder.
        scores: One a run, step and set; empty while no run is finished.
        order: Labels as the study file lists them; empty without one.
        reference: Label that the others are compared with.
        runs: By student and label, the folder of each seed that has logged a step.
        notes: Sentences on what is not there.
    """

    folder: Path
    scores: tuple[SetScore, ...]
    order: tuple[str, ...]
    reference: str
    runs: Mapping[tuple[str, str], Mapping[int, Path]]
    notes: tuple[str, ...]

    @property
    def students(self) -> tuple[str, ...]:
        """Students, in the order in which they were measured."""
        named = [score.student for score in self.scores if score.label != TEACHER] + [name for name, _ in self.runs]
        return tuple(dict.fromkeys(named))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the trained arms that are there, in the order of the study file, others behind them."""
        named = [score.label for score in self.scores if score.label not in UNTRAINED]
        named += [label for _, label in self.runs]
        return tuple(dict.fromkeys([label for label in self.order if label in named] + named))

    def steps(self) -> tuple[int, ...]:
        """Steps after which trained arms were evaluated, rising."""
        return tuple(sorted({score.step for score in self.scores if score.label not in UNTRAINED}))

    def arms(self, step: int | None = None, labels: Collection[str] | None = None) -> dict[str, Arms]:
        """By student, its arms with the untrained models among them; students without a trained arm are left out.

        Args:
            step: Which evaluation; None for the last one of each run.
            labels: Trained arms that are taken; None for all.
        """
        chosen = [label for label in self.labels if labels is None or label in labels]
        of_teacher = [score for score in self.scores if score.label == TEACHER]
        teacher = gather(of_teacher, of_teacher[0].student, TEACHER, None) if of_teacher else None
        students: dict[str, Arms] = {}
        for student in self.students:
            found = {TEACHER: teacher, UNTRAINED[1]: gather(self.scores, student, UNTRAINED[1], None)}
            found |= {label: gather(self.scores, student, label, step) for label in chosen}
            arms = {label: sample for label, sample in found.items() if sample is not None and sample.seeds}
            if set(arms) - set(UNTRAINED):
                students[student] = arms
        return students

    def metrics(self, student: str, label: str) -> dict[int, Rows]:
        """Rows of each seed's metrics file.

        Raises:
            ValueError: If a metrics file is damaged.
        """
        paths = self.runs.get((student, label), {})
        return {seed: merge_steps(read_metrics(path / METRICS)) for seed, path in paths.items()}


def is_study(folder: Path) -> bool:
    """Whether a folder is that of a study."""
    return (folder / STUDY).is_file() or (folder / RESULTS).is_file()


def read_study_folder(folder: Path) -> StudyFolder:
    """Read the folder of a study, also of one that is running.

    Raises:
        ValueError: If the folder is not that of a study, or if a file in it is damaged.
    """
    if not is_study(folder):
        raise ValueError(f"{folder} is not the folder of a study: it holds neither {STUDY} nor {RESULTS}")
    notes = []
    runs = _runs(folder)
    there = (folder / RESULTS).is_file()
    scores = read_results(folder / RESULTS) if there else []
    named = _study_file(folder / STUDY)
    order = tuple(_label(each) for each in named.get("methods") or ())
    more, count = _finished(folder, scores, order)
    scores += more
    if not there:
        notes.append(f"{RESULTS} is not there yet: {count} finished runs are read one by one.")
    elif count:
        notes.append(f"{count} finished runs are not in {RESULTS} yet and are read one by one.")
    study = StudyFolder(folder, tuple(scores), order, DEFAULT_REFERENCE, runs, tuple(notes))
    reference = named.get("reference")
    if not isinstance(reference, str):
        reference = DEFAULT_REFERENCE if DEFAULT_REFERENCE in study.labels or not study.labels else study.labels[0]
    return replace(study, reference=reference)


def _runs(folder: Path) -> dict[tuple[str, str], dict[int, Path]]:
    """Run folders with metrics, by arm; seeds rise."""
    found: dict[tuple[str, str], dict[int, Path]] = {}
    for (student, label, seed), path in _run_files(folder, METRICS):
        if path.stat().st_size:
            found.setdefault((student, label), {})[seed] = path.parent
    return {arm: dict(sorted(seeds.items())) for arm, seeds in found.items()}


def _run_files(folder: Path, name: str) -> Iterator[tuple[tuple[str, str, int], Path]]:
    """Files of that name in run folders, with student, label and seed; copies whose names end in no seed stay out."""
    for path in sorted((folder / "runs").glob(f"*/*/seed-*/{name}")):
        student, label, seed = path.parts[-4:-1]
        number = seed.removeprefix("seed-")
        if number.isdecimal():
            yield (student, label, int(number)), path


def _finished(folder: Path, known: Sequence[SetScore], order: Collection[str]) -> tuple[list[SetScore], int]:
    """Scores of the study's finished runs beside the known ones, and the number of these runs.

    A folder may hold runs that are no part of the study any more: those of other labels, or with other sets, problems,
    samples or steps than the known ones.
    """
    there = by_run(known)
    shapes = {_shape(of_run) for (_, label, _), of_run in there.items() if label not in UNTRAINED}
    scores: list[SetScore] = []
    count = 0
    for run, path in _run_files(folder, RESULT):
        label = run[1]
        if run in there or (order and label not in (*order, *UNTRAINED)):
            continue
        found = run_scores(path, *run)
        if shapes and label not in UNTRAINED and _shape(found) not in shapes:
            continue
        scores += found
        count += 1
    return scores, count


def _shape(scores: Sequence[SetScore]) -> frozenset[tuple[int, str, int, int]]:
    return frozenset((each.step, each.benchmark, len(each.num_right), each.num_samples) for each in scores)


def _study_file(path: Path) -> Mapping[str, Any]:
    """What the study file says; nothing without one."""
    if not path.is_file():
        return {}
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable YAML ({' '.join(str(error).split())}); restore it") from error
    if not isinstance(values, Mapping) or not isinstance(values.get("methods") or [], list):
        raise ValueError(f"{path} is no study file; expected a mapping with a list of methods")
    return values


def _label(method: Any) -> str:
    """The label of one entry of ``methods``: a name, or a mapping with a method and perhaps a label."""
    named = (method.get("label") or method.get("method")) if isinstance(method, Mapping) else method
    return str(named)
