"""Study files: what they stand for, and one sentence for each mistake."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import yaml

from saki.config.parsing import UsageError
from saki.config.study import StudyRun, chosen_runs, parse_seeds, read_study
from saki.methods import method_names

ROOT = Path(__file__).parents[2]


def study(tmp_path, **keys):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"methods": ["opd", "trb"], "seeds": "0-2", "num_problems": 4, **keys}))
    return read_study(path)


def test_runs_come_seed_by_seed_after_the_untrained_models(tmp_path):
    made = study(tmp_path, students=["lab/student", "/models/small"])
    labels = [(run.label, run.student, run.seed) for run in made.runs]
    assert labels[:3] == [
        ("teacher", "lab/student", 0),
        ("student", "lab/student", 0),
        ("student", "/models/small", 0),
    ]
    assert [(label, seed) for label, student, seed in labels[3:] if student == "lab/student"] == [
        (label, seed) for seed in (0, 1, 2) for label in ("opd", "trb")
    ]
    assert len({run.folder for run in made.runs}) == len(made.runs) == 3 + 12
    assert made.reference == "trb"
    assert study(tmp_path, baselines=False).runs[0].label == "opd"


def test_students_may_have_names_of_any_letters(tmp_path):
    made = study(tmp_path, students=["/models/_student", "/models/qwen@v2", "/models/modèle (1)"])
    assert {run.folder.split("/")[0] for run in made.runs} == {"_student", "qwen@v2", "modèle_(1)"}


def test_settings_reach_the_trainer(tmp_path):
    held = {"method": "saki", "label": "held", "radius_schedule": "constant", "learning_rate": "3e-4"}
    made = study(
        tmp_path,
        methods=["opd", held, {"method": "exopd", "method_options": {"exopd_lambda": 1.1}}, "skd"],
        overrides={"learning_rate": 1e-3, "lr_scheduler_type": "constant"},
        max_steps=40,
    )
    configs = {run.label: run.config(str(tmp_path)) for run in made.runs if run.trains and run.seed == 1}
    assert {label: config.learning_rate for label, config in configs.items()} == {
        "opd": 1e-3,
        "held": 3e-4,
        "exopd": 1e-3,
        "skd": 1e-3,
    }
    assert configs["held"].radius_at(40) == configs["held"].radius_at(1) == 0.02
    assert configs["opd"].radius_anneal_steps == 10
    assert configs["exopd"].method_options == {"exopd_lambda": 1.1}
    assert configs["skd"].method_options == {"top_k": 3}  # the lab has 36 ids
    assert all(config.save_rollouts_steps == 0 and config.seed == 1 for config in configs.values())


def test_settings_have_the_types_of_a_training_file(tmp_path):
    overrides = {"bf16": "false", "adam_beta1": "0.8", "prompt_suffix": "5e4", "weight_decay": 0, "use_cpu": True}
    made = study(tmp_path, overrides=overrides).arms[0].settings
    assert made == {"bf16": False, "adam_beta1": 0.8, "prompt_suffix": "5e4", "weight_decay": 0, "use_cpu": True}
    assert type(made["weight_decay"]) is int  # as it is written: runs that are finished keep their fingerprint


def test_a_run_survives_json_and_its_fingerprint_holds_every_setting(tmp_path):
    first = study(tmp_path).runs[-1]
    again = StudyRun.from_json(first.to_json())
    assert again == first
    assert again.fingerprint == first.fingerprint
    other = study(tmp_path, overrides={"learning_rate": 1e-3}).runs[-1]
    assert other.folder == first.folder
    assert other.fingerprint != first.fingerprint
    assert (
        study(tmp_path, seeds="0-9").runs[2].fingerprint == study(tmp_path).runs[2].fingerprint
    )  # more seeds: no change


@pytest.mark.parametrize(
    ("value", "seeds"), [("0-3", (0, 1, 2, 3)), ("0-1,100-101", (0, 1, 100, 101)), ([4, 2], (4, 2)), (7, (7,))]
)
def test_seeds(value, seeds):
    assert parse_seeds(value) == seeds


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": ["opd"]}, "unknown key 'method' in .*did you mean 'methods'"),
        ({"methods": ["sakki"]}, "unknown method 'sakki'; did you mean 'saki'"),
        ({"methods": [{"method": "opd", "learning_rat": 1}]}, "did you mean 'learning_rate'"),
        ({"methods": [{"label": "x"}]}, "a name or a mapping with 'method'"),
        ({"methods": ["opd", "opd"]}, "the label 'opd' is taken"),
        ({"methods": [{"method": "opd", "label": "student"}]}, "is taken"),
        ({"methods": [{"method": "opd", "label": "a/b"}]}, "names a folder"),
        ({"methods": [{"method": "skd", "method_options": {"topk": 2}}]}, "did you mean 'top_k'"),
        ({"methods": []}, "at least one of methods"),
        ({"overrides": {"seed": 3}}, "'seed' in .* is set by the study itself"),
        ({"overrides": {"prompts_per_step": 7}}, "must be a multiple"),
        ({"seeds": "0-x"}, "seeds must be numbers"),
        ({"seeds": [1, 1]}, "seeds must be there and differ"),
        ({"split": "train"}, "split in .* must be test or development"),
        ({"num_problems": 500}, "distinct questions"),
        ({"num_samples": 0}, "num_samples in .* at least 1"),
        ({"evaluate_at": [200]}, "steps from 1 to 199"),
        ({"reference": "sakii"}, "reference 'sakii' is no label"),
        ({"students": ["a/x", "b/x"]}, "same folder name"),
        ({"students": ["lab/habbit"]}, "no model 'lab/habbit' in the lab; did you mean 'lab/habit'"),
        ({"teacher": ""}, "is empty"),
        ({"teacher": None}, "teacher in .* must be the name or folder of a model, got None"),
        ({"students": [3]}, "students in .* must be names or folders of models"),
        ({"students": [".."]}, "gives its runs no folder name"),
        ({"dataset": 5}, "dataset in .* must be the name or file of a prompt set"),
        ({"dataset": "lab/devel"}, "no prompt set 'lab/devel' in the lab"),
        ({"reference": 5}, "reference in .* must be a label, got 5"),
        ({"baselines": "no"}, "baselines in .* must be true or false, got 'no'"),
        ({"evaluate_at": [True]}, "steps from 1 to 199"),
        ({"seeds": "0-1,9-7"}, "'9-7' runs backwards; write 7-9"),
        ({"num_problems": 10**9}, "ask for fewer problems"),
        ({"methods": [{"method": "opd", 5: 3}]}, "unknown key 5 of opd"),
        ({"methods": [{"method": "skd", "method_options": [1]}]}, "method_options of skd in .* 'option: value' lines"),
        ({"overrides": {"warmup_steps": date(2020, 1, 1)}}, "warmup_steps of opd in .* is a date"),
        ({"overrides": {"warmup_steps": "abc"}}, "warmup_steps must be a number, got 'abc' .in .*study.yaml"),
        ({"overrides": {"adam_beta1": "abc"}}, "adam_beta1 must be a number, got 'abc'"),
        ({"overrides": {"bf16": "nein"}}, "bf16 must be true or false, got 'nein'"),
        ({"overrides": {"learning_rate": None}}, "learning_rate in .* is empty"),
        ({"overrides": {"lr_scheduler_kwargs": "foo"}}, "opd of .*: lr_scheduler_kwargs is not valid JSON"),
        ({"overrides": {"report_to": [1]}}, r"opd of .*: report_to must name trackers, got \[1\]"),
        ({"overrides": {"eval_strategy": "steps"}}, "'eval_strategy' in .* is set by the study itself"),
    ],
)
def test_mistakes(tmp_path, keys, message):
    with pytest.raises(UsageError, match=message):
        study(tmp_path, **keys)


def test_a_stage_is_some_labels_seeds_and_students_with_the_models_as_they_are(tmp_path):
    made = study(tmp_path, students=["lab/student", "lab/habit"], methods=["opd", "trb", "saki"])
    assert chosen_runs(made) == made.runs
    chosen = chosen_runs(made, "saki,opd", "1-2", "lab/habit")
    assert [(run.label, run.student, run.seed) for run in chosen] == [
        ("teacher", "lab/student", 0),
        ("student", "lab/habit", 0),
        ("opd", "lab/habit", 1),
        ("saki", "lab/habit", 1),
        ("opd", "lab/habit", 2),
        ("saki", "lab/habit", 2),
    ]
    assert {run.folder.split("/")[0] for run in chosen} == {"lab-student", "lab-habit"}
    for arguments, message in (
        (("sakii",), "only names 'sakii', which is none of the study's; did you mean 'saki'"),
        ((None, "9"), "only_seeds names 9"),
        ((None, None, "lab/habit_2"), "only_students names 'lab/habit_2'"),
    ):
        with pytest.raises(UsageError, match=message):
            chosen_runs(made, *arguments)


def test_the_smoke_study_holds_every_method():
    made = read_study(ROOT / "examples" / "study_smoke.yaml")
    assert [arm.method for arm in made.arms] == list(method_names())
    assert len(made.seeds) == 2
