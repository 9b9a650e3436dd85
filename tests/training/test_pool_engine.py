"""Training with a pool: the same run to the bit, whatever its replicas do, and one pool for several ranks."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray")  # the choice of this engine is refused without it

from saki.cli.main import main
from saki.lab import student_path, teacher_path, training_problems
from saki.models import PairSpec, tiny_qwen3
from saki.rollout import read_rollouts
from saki.rollout.pool import TooManyFailuresError
from saki.training import SakiConfig, SakiTrainer
from saki.training.checkpoint import list_checkpoints
from saki.training.pool_engine import PeerPoolError, SharedPool, _source, pool_engine
from saki.training.ranks import PeerError, Ranks
from saki.types import Prompt
from tests.rollout.contract import PROMPTS, STOPS, STUDENT, VOCAB, assert_same, request
from tests.rollout.pool.in_process import InProcessHost, in_process_pool
from tests.rollout.pool.on_ray import wait_for_forwards
from tests.rollout.served import tiny_decoder
from tests.tiny import tiny_trainer

STEPS = 3
ROOT = Path(__file__).parents[2]


def lab_trainer(folder, **options):
    args = SakiConfig(
        output_dir=str(folder),
        **{
            "method": "saki",
            "max_steps": STEPS,
            "trust_region_radius": 0.05,
            "prompts_per_step": 4,
            "num_generations": 2,
            "per_device_train_batch_size": 8,
            "max_completion_length": 24,
            "learning_rate": 1e-3,
            "rollout_batch_rows": 4,
            "save_steps": 1,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "engine": "pool",
            "pool_cpus_per_replica": 0.2,
            "pool_bucket_mb": 1,
            "pool_unit_rows": 4,
            **options,
        },
    )
    rows = [{"prompt": problem.prompt} for problem in training_problems(16, 0)]
    return SakiTrainer(str(student_path()), str(teacher_path()), args, rows)


def outcome(folder, trainer):
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return weights, [read_rollouts(folder / "rollouts" / f"step-{step:06d}.parquet")[0] for step in range(1, STEPS + 1)]


def assert_same_run(got, wanted):
    assert got[0].keys() == wanted[0].keys()
    for name, value in wanted[0].items():
        assert torch.equal(got[0][name], value), name
    for batch, reference in zip(got[1], wanted[1], strict=True):
        assert_same(batch, reference, exact=True)


@pytest.fixture
def hosts(monkeypatch):
    """Pools of trainers run in this process; the hosts that they got, and the faults of the next one."""
    return in_this_process(monkeypatch)


def in_this_process(monkeypatch):
    from saki.rollout.pool import making

    made, faults = [], {}

    def host(models, settings, runtime):
        made.append(InProcessHost(models, faults))
        return made[-1]

    monkeypatch.setattr(making, "RayHost", host)
    monkeypatch.setattr(making, "RayRuntime", lambda settings: None)
    return made, faults


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Weights and rollouts of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("calm")
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_this_process(monkeypatch)
        trainer = lab_trainer(folder)
        trainer.train()
    assert trainer.engine.stats().sync_bytes > 0
    return outcome(folder, trainer)


def test_a_disturbed_run_is_the_same_to_the_bit(hosts, calm, tmp_path):
    made, faults = hosts
    faults.update(
        {(1, "generate", 1): "die", (2, "add_bucket", 2): "die", (3, "begin_sync", 1): "die", (4, "generate", 2): "die"}
    )
    trainer = lab_trainer(tmp_path / "disturbed", pool_replicas=2)
    trainer.train()
    assert_same_run(outcome(tmp_path / "disturbed", trainer), calm)
    assert trainer.engine.stats().failures == 4 - len(made[0].faults) >= 3


def test_too_many_failures_save_what_is_trained_and_a_resumed_run_is_the_same(hosts, calm, tmp_path, caplog):
    _, faults = hosts
    # Two units a step: the third call comes in step 2.
    faults.update({(1, "generate", 3): "die", (2, "generate", 1): "die"})
    trainer = lab_trainer(tmp_path / "run", pool_max_failures=1, save_steps=1000)
    with pytest.raises(TooManyFailuresError, match="max_failures is 1"):
        trainer.train()
    names = sorted(path.name for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not [name for name in names if "unfinished" in name]
    assert "step-000001.parquet" in names
    assert "step-000002.parquet" not in names
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["checkpoint-1"]
    assert "steps up to 1 are saved" in caplog.text
    trainer = lab_trainer(tmp_path / "run")
    trainer.train(resume_from_checkpoint=True)
    assert_same_run(outcome(tmp_path / "run", trainer), calm)


LAB = ["train", "configs/lab.yaml", "--max_steps", "2", "--prompts_per_step", "2", "--num_generations", "2"]
LAB += ["--per_device_train_batch_size", "4", "--max_completion_length", "8", "--report_to", "none", "--engine", "pool"]


def test_the_command_ends_with_one_sentence_and_a_checkpoint_and_goes_on(hosts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, faults = hosts
    faults[1, "generate", 2] = "die"
    words = [*LAB, "--out", str(tmp_path / "run")]
    assert main([*words, "--pool_max_failures", "0"]) == 1
    error = capsys.readouterr().err.strip().splitlines()
    assert "max_failures is 0" in error[-1]
    assert "process is gone" in error[-1]
    assert "Traceback" not in "".join(error)
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["checkpoint-1"]
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_without_ray_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*LAB, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "needs ray; install it with: pip install 'saki[ray]'" in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_models_without_a_name_are_written_for_the_replicas(hosts, tmp_path):
    trainer = tiny_trainer(tmp_path / "run", engine="pool", method="saki")
    folders = [hosts[0][0].models.student.folder, hosts[0][0].models.teacher.folder]
    assert folders == [str(tmp_path / "run" / "pool" / side) for side in ("student", "teacher")]
    trainer.train()
    resident = tiny_trainer(tmp_path / "resident", method="saki")
    resident.train()
    for name, value in resident.model.state_dict().items():
        assert torch.allclose(value, trainer.model.state_dict()[name], atol=1e-5), name


def test_a_teacher_that_was_changed_in_this_process_is_refused(hosts, tmp_path):
    student, teacher = (tiny_qwen3(VOCAB, seed=seed) for seed in (1, 2))
    teacher.save_pretrained(tmp_path / "teacher")
    teacher.name_or_path = str(tmp_path / "teacher")
    with torch.no_grad():
        next(teacher.parameters()).view(-1)[0] += 1
    from saki.models import PairSpec

    spec = PairSpec(vocab_size=VOCAB, stop_token_ids=STOPS, pad_token_id=0, notes=())
    args = SakiConfig(output_dir=str(tmp_path / "run"), engine="pool", use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="the replicas loaded another teacher"):
        pool_engine(
            student,
            teacher,
            spec,
            args,
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_batch_rows=4,
            folder=tmp_path / "run",
        )
    assert hosts[0][0].closed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "vllm"}, "resident or pool"),
        ({"pool_replicas": 2}, "engine is resident; set engine to pool"),
        ({"engine": "pool", "pool_replicas": 0}, "replicas must be at least 1"),
        ({"engine": "pool", "pool_devices": "4,x"}, "pool_devices"),
        ({"engine": "pool", "pool_devices": "4,5", "pool_replicas": 3}, "do not fit 2 devices"),
        ({"engine": "pool", "pool_resources": "engine"}, "not valid JSON"),
    ],
)
def test_settings_that_make_no_engine(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        SakiConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", **options)


def test_the_papers_split_on_one_machine(tmp_path):
    args = SakiConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to="none",
        engine="pool",
        pool_replicas=4,
        pool_devices="4,5,6,7",
        pool_resources='{"engine": 1}',
    )
    settings = args.pool_settings(batch_rows=64, on_gpu=True)
    assert (settings.replicas, settings.devices, settings.gpus) == (4, (4, 5, 6, 7), 1.0)
    assert settings.resources == {"engine": 1}
    assert (settings.unit_rows, settings.batch_rows) == (128, 64)


class ThreadRanks(Ranks):
    """Ranks as threads of this process."""

    def __init__(self, rank, boxes):
        super().__init__(rank, len(boxes))
        self.boxes = boxes

    def gather(self, value):
        for box in self.boxes:
            box[self.rank].put(value)
        return [self.boxes[self.rank][other].get(timeout=60) for other in range(self.size)]

    def scatter(self, values):
        if values is not None:
            for box, value in zip(self.boxes, values, strict=True):
                box["scatter"].put(value)
        return self.boxes[self.rank]["scatter"].get(timeout=60)


def on_ranks(size, action):
    """What each of so many threads returned or raised."""
    boxes = [{key: queue.Queue() for key in (*range(size), "scatter")} for _ in range(size)]
    found = [None] * size

    def run(rank):
        try:
            found[rank] = action(ThreadRanks(rank, boxes))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_share_one_pool_and_their_number_changes_no_bit():
    pool, host = in_process_pool()
    whole = pool.generate(PROMPTS, request())  # 4, 4 and 2 rows
    # Each rank has half of every prompt's samples; the last one nothing.
    shares = [
        [Prompt(p.key, p.token_ids, (p.sample_indices or tuple(range(4)))[half::2]) for p in PROMPTS] for half in (0, 1)
    ]
    new = tiny_decoder(**{**STUDENT, "seed": 5})

    def action(ranks):
        shared = SharedPool(pool if ranks.is_first else None, ranks)
        before = shared.stats()
        if ranks.rank == 2:
            shared.take_part(request())
            batch = None
        else:
            batch = shared.generate(shares[ranks.rank], request())
        after = shared.stats()
        taken = []

        def stream():
            for item in new.named_tensors():
                taken.append(item[0])
                yield item

        report = shared.sync_student(stream(), 1)
        return batch, report, len(taken), shared.student_checksum(), after.waves - before.waves

    first, second, third = on_ranks(3, action)
    for rank, (batch, *_) in enumerate((first, second)):
        rows = [
            row
            for row in range(len(whole))
            if int(whole.sample_indices[row])
            in {int(p.key): p.sample_indices for p in shares[rank]}[int(whole.prompt_keys[row])]
        ]
        wanted = whole.select(rows)
        width = batch.completion_ids.shape[1]
        assert torch.equal(batch.completion_ids, wanted.completion_ids[:, :width])
        assert torch.equal(batch.student_logprobs.nan_to_num(), wanted.student_logprobs[:, :width].nan_to_num())
        assert torch.equal(batch.beta.nan_to_num(), wanted.beta[:, :width].nan_to_num())
    assert third[0] is None
    assert first[1] == second[1] == third[1]
    assert first[2] == second[2] == third[2] == len(list(new.named_tensors()))
    assert first[3] == second[3] == third[3] == first[1].checksum
    assert first[4] > 0
    assert (second[4], third[4]) == (0, 0)
    assert len({call for number, call in host.log}) > 3


def test_a_failure_of_the_first_rank_reaches_all_and_nobody_waits():
    pool, _ = in_process_pool({(number, "generate", 1): "die" for number in range(1, 9)}, max_failures=1)

    def action(ranks):
        shared = SharedPool(pool if ranks.is_first else None, ranks)
        left = iter([("a", torch.zeros(1)), ("b", torch.zeros(1))])
        with pytest.raises((ValueError, PeerError), match="is unknown"):
            shared.sync_student(left, 1)
        assert next(left, None) is None  # whoever gathers weights gathers all of them
        if ranks.is_first:
            pool.sync_student(tiny_decoder(**STUDENT).named_tensors(), 0)
        return shared.generate(PROMPTS, request())

    first, second = on_ranks(2, action)
    assert isinstance(first, TooManyFailuresError)
    assert isinstance(second, PeerPoolError)  # so that it, too, saves what is trained
    assert "rank 0 failed: TooManyFailuresError" in str(second)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_replicas_killed_and_stopped_while_a_run_goes_on(calm, tmp_path, monkeypatch):
    """SIGKILL in a rollout and in a sync, SIGSTOP in a rollout: weights and rollouts as those of a calm run."""
    from saki.rollout.pool.ray_host import RayHandle

    start, counts, done = RayHandle.start, {}, []
    faults = {
        ("generate", 2): signal.SIGKILL,  # in step 1
        ("add_bucket", 5): signal.SIGKILL,
        ("generate", 6): signal.SIGSTOP,
    }

    def disturbed(self, call, *arguments):
        start(self, call, *arguments)
        counts[call] = counts.get(call, 0) + 1
        if (call, counts[call]) in faults:
            if call == "generate":
                wait_for_forwards(self, 4)
            done.append(call)
            os.kill(self._place[1], faults[call, counts[call]])

    monkeypatch.setattr(RayHandle, "start", disturbed)
    trainer = lab_trainer(tmp_path / "disturbed", pool_replicas=2, pool_stall_timeout=15.0)
    trainer.train()
    assert sorted(done) == ["add_bucket", "generate", "generate"]
    assert_same_run(outcome(tmp_path / "disturbed", trainer), calm)
    stats = trainer.engine.stats()
    assert stats.failures == 3
    assert any("no sign of life" in cause for cause in stats.causes)
    trainer.engine.close()


def test_replicas_load_the_commit_that_the_trainer_has_loaded(tmp_path):
    student = tiny_qwen3(VOCAB, seed=1)
    spec = PairSpec(VOCAB, STOPS, 0)
    unnamed = _source(student, spec, None, tmp_path / "student")
    assert (unnamed.folder, unnamed.revision, unnamed.trust_remote_code) == (str(tmp_path / "student"), None, False)
    student.config._name_or_path = student.name_or_path = "someone/model"
    student.config._commit_hash = "1f2e"
    student.__class__ = type("Own", (type(student),), {"__module__": "transformers_modules.someone.own"})
    named = _source(student, spec, torch.bfloat16, tmp_path / "none")
    assert (named.folder, named.revision, named.trust_remote_code) == ("someone/model", "1f2e", True)
    assert named.dtype == "bfloat16"
    assert not (tmp_path / "none").exists()
