"""A study file: methods x seeds x students, and the runs it stands for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saki.config.parsing import CommandParser, UsageError, read_yaml
from saki.config.recipes import lab_config
from saki.config.sources import (
    LAB_MODELS,
    LAB_PROMPTS,
    LAB_STUDENT,
    LAB_TEACHER,
    check_model_name,
    check_num_problems,
    check_prompts_name,
)
from saki.training import SakiConfig
from saki.types.exact import did_you_mean

TEACHER, STUDENT = "teacher", "student"
"""Labels of the two models that are evaluated without training."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_OWN_FIELDS = (
    *("output_dir", "method", "seed", "max_steps", "logging_dir", "run_name"),
    *("eval_strategy", "eval_steps", "eval_on_start"),  # a study evaluates by itself: evaluate_at
)
_ARM_KEYS = ("label", "method")
_KINDS: dict[str, tuple[Any, str]] = {
    "methods": (list, "a list"),
    "students": (list, "a list"),
    "overrides": (dict, "a mapping of 'key: value' lines"),
    "evaluate_at": (list, "a list of steps"),
    "teacher": (str, "the name or folder of a model"),
    "dataset": (str, "the name or file of a prompt set"),
    "split": (str, "test or development"),
    "reference": (str | None, "a label"),
    "baselines": (bool, "true or false"),
}


@dataclass(frozen=True)
class StudyArm:
    """One method with its settings.

    Attributes:
        label: Name in folders and tables.
        method: Registered method.
        settings: Fields of :class:`SakiConfig` over the lab's recipe.
    """

    label: str
    method: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class StudyRun:
    """One run: everything that decides its result.

    Attributes:
        label: Of its arm, or :data:`TEACHER` or :data:`STUDENT` for a model that is evaluated as it is.
        method: Registered method; empty for an untrained model.
        student: Folder, hub name, or lab/student.
        seed: Run seed, of training and evaluation.
        settings: Fields of :class:`SakiConfig` over the lab's recipe.
        teacher: Folder, hub name, or lab/teacher.
        dataset: Prompts, as for ``saki train``.
        max_steps: Optimizer steps.
        evaluate_at: Steps before the last after which the student is evaluated as well.
        split: ``"test"`` or ``"development"``.
        num_problems: Problems a set.
        num_samples: Samples a problem.
        max_new_tokens: Most tokens a completion in evaluation.
    """

    label: str
    method: str
    student: str
    seed: int
    settings: Mapping[str, Any]
    teacher: str
    dataset: str
    max_steps: int
    evaluate_at: tuple[int, ...]
    split: str
    num_problems: int
    num_samples: int
    max_new_tokens: int

    @property
    def trains(self) -> bool:
        """Whether the run trains, or evaluates a model as it is."""
        return bool(self.method)

    @property
    def folder(self) -> str:
        """Folder inside the study's ``runs``."""
        return run_folder(folder_name(self.student), self.label, self.seed)

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StudyRun:
        """The run of :meth:`to_json`."""
        return cls(**{**values, "evaluate_at": tuple(values["evaluate_at"])})

    @property
    def fingerprint(self) -> str:
        """Hash of all fields: a finished run counts only for the settings that it was made with."""
        return hashlib.blake2b(json.dumps(self.to_json(), sort_keys=True).encode(), digest_size=8).hexdigest()

    def config(self, out: str) -> SakiConfig:
        """The trainer's configuration, in the run's folder.

        Raises:
            ValueError: If a setting is not valid.
        """
        quiet = {"report_to": "none", "save_rollouts_steps": 0, "disable_tqdm": True, "save_total_limit": 1}
        return lab_config(
            out, method=self.method, max_steps=self.max_steps, seed=self.seed, **{**quiet, **self.settings}
        )


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        arms: What is compared.
        seeds: Run seeds.
        students: Students.
        reference: Label that the others are compared with.
        runs: All runs, seed by seed, so that a study that stops early has whole seeds.
    """

    arms: tuple[StudyArm, ...]
    seeds: tuple[int, ...]
    students: tuple[str, ...]
    reference: str
    runs: tuple[StudyRun, ...]


@dataclass
class StudyKeys:
    """Keys of a study file.

    Attributes:
        methods: Names, or mappings with ``method``, ``label`` and fields of :class:`SakiConfig`.
        seeds: A list, or a range such as ``0-15``, or ranges and numbers joined by commas.
        students: Folders, hub names, or lab/student.
        teacher: Folder, hub name, or lab/teacher.
        dataset: Prompts, as for ``saki train``.
        max_steps: Optimizer steps a run.
        overrides: Fields of :class:`SakiConfig` for all methods.
        evaluate_at: Steps before the last after which the student is evaluated as well.
        split: ``test`` or ``development``.
        num_problems: Problems a set.
        num_samples: Samples a problem.
        max_new_tokens: Most tokens a completion in evaluation.
        reference: Label that the others are compared with; by default ``trb``, or else the first.
        baselines: Whether teacher and untrained students are evaluated, too.
    """

    methods: list[Any] = field(default_factory=list)
    seeds: Any = "0-3"
    students: list[str] = field(default_factory=lambda: [LAB_STUDENT])
    teacher: str = LAB_TEACHER
    dataset: str = LAB_PROMPTS
    max_steps: int = 200
    overrides: dict[str, Any] = field(default_factory=dict)
    evaluate_at: list[int] = field(default_factory=list)
    split: str = "test"
    num_problems: int = 300
    num_samples: int = 8
    max_new_tokens: int = 64
    reference: str | None = None
    baselines: bool = True


def read_study(path: Path) -> Study:
    """Read and check a study file, and lay out its runs.

    Raises:
        UsageError: If a key, a method, a setting or a value is not valid; one sentence says which.
    """
    values = read_yaml(path)
    known = [each.name for each in dataclasses.fields(StudyKeys)]
    for key in values:
        if key not in known:
            raise UsageError(f"unknown key {key!r} in {path}; {_hint(key, known)}")
    keys = StudyKeys(**values)
    _check_keys(keys, path)
    parser = CommandParser([SakiConfig], "saki study", "", "")
    arms = tuple(_arm(entry, keys.overrides, path, parser) for entry in keys.methods)
    labels = [arm.label for arm in arms]
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated or TEACHER in labels or STUDENT in labels:
        raise UsageError(f"the label {repeated or TEACHER!r} is taken in {path}; give each method a label of its own")
    reference = keys.reference or ("trb" if "trb" in labels else labels[0])
    if reference not in labels:
        raise UsageError(f"reference {reference!r} is no label of {path}; {_hint(reference, labels)}")
    students, seeds = tuple(keys.students), parse_seeds(keys.seeds)
    for name in (keys.teacher, *students):
        _refuse(path, check_model_name, "a model", name)
    _refuse(path, check_prompts_name, "dataset", keys.dataset)
    unnamed = next((student for student in students if folder_name(student) in ("", ".", "..")), None)
    if unnamed is not None:
        raise UsageError(
            f"the student {unnamed!r} in {path} gives its runs no folder name; give the folder's full path"
        )
    if len({folder_name(student) for student in students}) < len(students):
        raise UsageError(f"two students of {path} have the same folder name; rename one of the folders")
    study = Study(arms, seeds, students, reference, _runs(keys, arms, seeds))
    for arm in arms:
        try:
            next(run for run in study.runs if run.label == arm.label).config("unused")
        except (ValueError, TypeError) as error:
            raise UsageError(f"{arm.label} of {path}: {error}") from error
    return study


def with_reference(study: Study, label: str) -> Study:
    """The study with another label that the others are compared with.

    Raises:
        UsageError: If it is none of the study's.
    """
    labels = [arm.label for arm in study.arms]
    if label not in labels:
        raise UsageError(f"reference names {label!r}, which is none of the study's; {_hint(label, labels)}")
    return dataclasses.replace(study, reference=label)


def chosen_runs(
    study: Study, labels: str | None = None, seeds: str | None = None, students: str | None = None
) -> tuple[StudyRun, ...]:
    """The runs of a stage: some labels, seeds and students, with these students and the teacher as they are.

    Args:
        study: The study.
        labels: Labels joined by commas, or None for all.
        seeds: As for :func:`parse_seeds`, or None for all.
        students: Students joined by commas, or None for all.

    Raises:
        UsageError: If one of them is none of the study's.
    """
    of_labels = _chosen("only", labels, [arm.label for arm in study.arms])
    of_students = _chosen("only_students", students, study.students)
    of_seeds = study.seeds if seeds is None else parse_seeds(seeds)
    missing = [seed for seed in of_seeds if seed not in study.seeds]
    if missing:
        raise UsageError(f"only_seeds names {missing[0]}, which is none of the study's seeds; add it to the file")
    return tuple(
        run
        for run in study.runs
        if run.label == TEACHER
        or (run.student in of_students and (not run.trains or (run.label in of_labels and run.seed in of_seeds)))
    )


def _chosen(option: str, value: str | None, known: Sequence[str]) -> Sequence[str]:
    names = known if value is None else [name.strip() for name in value.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} names {name!r}, which is none of the study's; {_hint(name, known)}")
    return names


def parse_seeds(value: Any) -> tuple[int, ...]:
    """Seeds from ``3``, ``[0, 1]``, ``"0-15"`` or ``"0-7,100-107"``.

    Raises:
        UsageError: If they cannot be read, or one comes twice.
    """
    parts = [str(part) for part in value] if isinstance(value, list) else str(value).split(",")
    seeds: list[int] = []
    for part in parts:
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise UsageError(f"seeds must be numbers and ranges such as 0-15, got {part!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"the range of seeds {part.strip()!r} runs backwards; write {last}-{first}")
        seeds += range(first, last + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds must be there and differ, got {value!r}")
    return tuple(seeds)


def folder_name(student: str) -> str:
    """A student's name as one folder: lab-student for lab/student and its like, the last part of another path."""
    return student.replace("/", "-") if student in LAB_MODELS else Path(student).name.replace(" ", "_")


def run_folder(student: str, label: str, seed: int) -> str:
    """Folder of a run inside a study's ``runs``; the student by its :func:`folder_name`."""
    return f"{student}/{label}/seed-{seed}"


def _runs(keys: StudyKeys, arms: Sequence[StudyArm], seeds: Sequence[int]) -> tuple[StudyRun, ...]:
    shared: dict[str, Any] = {
        "teacher": keys.teacher,
        "dataset": keys.dataset,
        "max_steps": keys.max_steps,
        "evaluate_at": tuple(sorted(keys.evaluate_at)),
        "split": keys.split,
        "num_problems": keys.num_problems,
        "num_samples": keys.num_samples,
        "max_new_tokens": keys.max_new_tokens,
    }
    untrained: dict[str, Any] = {**shared, "max_steps": 0, "evaluate_at": ()}
    untrained |= {"method": "", "settings": {}, "seed": seeds[0]}
    runs = []
    if keys.baselines:
        runs = [StudyRun(label=STUDENT, student=student, **untrained) for student in keys.students]
        runs.insert(0, StudyRun(label=TEACHER, student=keys.students[0], **untrained))
    runs += [
        StudyRun(label=arm.label, method=arm.method, student=student, seed=seed, settings=arm.settings, **shared)
        for seed in seeds
        for student in keys.students
        for arm in arms
    ]
    return tuple(runs)


def _arm(entry: Any, overrides: Mapping[str, Any], path: Path, parser: CommandParser) -> StudyArm:
    own = {"method": entry} if isinstance(entry, str) else entry
    if not isinstance(own, dict) or not isinstance(own.get("method"), str):
        raise UsageError(f"each entry of methods in {path} is a name or a mapping with 'method', got {entry!r}")
    label = str(own.get("label", own["method"]))
    if not _LABEL.fullmatch(label):
        raise UsageError(f"the label {label!r} in {path} names a folder; use letters, digits, '.', '-', '_' and '+'")
    settings: dict[Any, Any] = {**overrides, **{key: value for key, value in own.items() if key not in _ARM_KEYS}}
    known = [each.name for each in dataclasses.fields(SakiConfig) if each.init and each.name not in _OWN_FIELDS]
    for key in settings:
        if key in _OWN_FIELDS:
            raise UsageError(f"{key!r} in {path} is set by the study itself; remove it from {label}")
        if key not in known:
            raise UsageError(f"unknown key {key!r} of {label} in {path}; {_hint(str(key), [*known, *_ARM_KEYS])}")
    for key, value in settings.items():
        if key == "method_options" and not isinstance(value, dict | None):
            raise UsageError(f"method_options of {label} in {path} must hold 'option: value' lines, got {value!r}")
        if not isinstance(value, bool | int | float | str | list | dict | None):
            raise UsageError(f"{key} of {label} in {path} is a {type(value).__name__}; expected a number or a text")
    typed = {key: parser.typed(key, value, path) for key, value in settings.items()}
    # What is equal stays as it is written, 1 for 1.0, since it decides the fingerprint of runs that are finished.
    same = {key: value for key, value in settings.items() if value == typed[key]}
    return StudyArm(label, own["method"], {**typed, **same})


def _check_keys(keys: StudyKeys, path: Path) -> None:
    for name, (kind, words) in _KINDS.items():
        if not isinstance(getattr(keys, name), kind):
            raise UsageError(f"{name} in {path} must be {words}, got {getattr(keys, name)!r}")
    if any(not isinstance(name, str) for name in keys.students):
        raise UsageError(f"students in {path} must be names or folders of models, got {keys.students!r}")
    if not keys.methods or not keys.students:
        raise UsageError(f"{path} needs at least one of methods and of students")
    for name in ("max_steps", "num_problems", "num_samples", "max_new_tokens"):
        value = getattr(keys, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name} in {path} must be a whole number of at least 1, got {value!r}")
    if keys.split not in ("test", "development"):
        raise UsageError(f"split in {path} must be test or development, got {keys.split!r}")
    if any(type(step) is not int or not 1 <= step < keys.max_steps for step in keys.evaluate_at):
        raise UsageError(
            f"evaluate_at in {path} must hold steps from 1 to {keys.max_steps - 1}, got {keys.evaluate_at}"
        )
    _refuse(path, check_num_problems, "num_problems", keys.num_problems, keys.split)


def _refuse(path: Path, check: Callable[..., None], *arguments: Any) -> None:
    try:
        check(*arguments)
    except ValueError as error:
        raise UsageError(f"{error} ({path})") from error


def _hint(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known, f"choose among {', '.join(known[:20])}")
