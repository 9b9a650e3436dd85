"""``saki plan``: memory and time of a run before it is started."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from saki.cli.console import fresh_folder, print_json
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments, TrainArguments
from saki.config.planning import PlanArguments
from saki.config.sources import model_path
from saki.files import write_text
from saki.methods import get_method
from saki.planning import DTYPE_BYTES, PRESETS, Device, Plan, PlanRequest, load_shape, make_plan
from saki.training import SakiConfig
from saki.types import check_number, json_object

logger = logging.getLogger(__name__)

SUMMARY = "Predict memory and speed of a pair on a device, and what to change if it does not fit."
PROMPT_LENGTH = 1024
EXAMPLE = "saki plan --model qwen3-1.7b --teacher_model qwen3-4b --device h100 --gradient_checkpointing"


def parser() -> CommandParser:
    """The command's options; the file may be one of saki train."""
    return CommandParser([CommonArguments, PlanArguments], "saki plan", SUMMARY, EXAMPLE, (TrainArguments, SakiConfig))


def run(argv: Sequence[str]) -> int:
    """Run the command; 0 whether the plan fits or not."""
    options = parser()
    common, args = options.parse(argv)
    training = options.set_aside
    for name in ("model", "teacher_model"):
        if getattr(args, name) is None:  # as a file of saki train may leave it to its command line
            raise UsageError(f"saki plan needs --{name}, as the file names none")
    if options.left_aside:
        logger.info("%s of the file belong to its training and were left aside", " and ".join(options.left_aside))
    if args.prompt_length is None:
        args.prompt_length = training.get("max_prompt_length") or PROMPT_LENGTH
    folder = fresh_folder(common.out, "saki plan") if common.out else None
    pool = training.get("engine") == "pool"
    if pool and training.get("pool_devices"):  # GPUs of their own, so the trainer's are others
        args.layout, args.engine_devices = "split", len(str(training["pool_devices"]).split(","))
    plan = make_plan(_request(args))
    text = describe(plan)
    if pool and plan.request.layout == "colocated":
        both = sum(item.num_bytes for item in plan.memory[0].items) / 1e9
        text += f"\nreplicas of a pool do not share the trainer's memory: on the same devices up to {both:.1f} GB each"
    options_of_method = json_object("method_options", training.get("method_options"))
    behavior = get_method(training["method"], options_of_method).behavior if "method" in training else None
    if behavior == "skd":
        text += (
            f"\n{training['method']} knows no radius: it replaces whatever is not among the teacher's top tokens, at "
            "every step, so its correction rate and with it the time of a step are not those above"
        )
    if behavior == "student":
        time = plan.time
        seconds = time.student_only_s + time.update_s + time.sync_s
        text += f"\n{training['method']} rolls out the student alone: {seconds:.1f} s a step, and the teacher's scoring"
    print(text)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "plan.txt", text + "\n")
    if common.json:
        print_json(plan.to_json())
    return 0


def _request(args: PlanArguments) -> PlanRequest:
    if args.task not in ("train", "rollout"):
        raise ValueError(f"task must be 'train' or 'rollout', got {args.task!r}")
    check_number("launch_us", args.launch_us, least=0)
    shared = {field.name for field in dataclasses.fields(PlanRequest)} - {"device"}
    values = {name: value for name, value in vars(args).items() if name in shared}
    if args.rollout_dtype == "auto":  # as saki train takes it
        values["rollout_dtype"] = "bfloat16" if args.bf16 else "float32"
    device, teacher = _device(args), load_shape(model_path(args.teacher_model))
    if args.teacher_dtype == "auto":  # likewise
        values["teacher_dtype"] = "float32" if device.is_cpu and DTYPE_BYTES[teacher.dtype] < 4 else teacher.dtype
    return PlanRequest(
        student=load_shape(model_path(args.model)),
        teacher=teacher,
        device=device,
        train=args.task == "train",
        launch_s=args.launch_us * 1e-6,
        **values,
    )


def _device(args: PlanArguments) -> Device:
    if args.device not in PRESETS:
        raise ValueError(f"device must be one of {', '.join(PRESETS)}, got {args.device!r}")
    device = PRESETS[args.device]
    for option, field, unit in (
        ("device_memory_gb", "memory_bytes", 1e9),
        ("bandwidth_gb_s", "bytes_per_s", 1e9),
        ("tflops", "flops", 1e12),
    ):
        value = getattr(args, option)
        if value is not None:
            check_number(option, value, positive=True)
            device = dataclasses.replace(device, **{field: value * unit})
    return device


def describe(plan: Plan) -> str:
    """The plan as text of at most 100 columns."""
    lines = []
    for memory in plan.memory:
        lines.append(f"{memory.role:42} {'phase':10} {'GB':>9}")
        lines += [f"  {item.name:40} {item.phase:10} {item.num_bytes / 1e9:9.3f}" for item in memory.items]
        room = "not limited" if memory.capacity is None else f"of {memory.capacity / 1e9:.1f}"
        verdict = "" if memory.capacity is None else ": fits" if memory.fits else ": does not fit"
        lines += [f"  {'peak':40} {'':10} {memory.peak / 1e9:9.3f}   {room}{verdict}", ""]
    time, request = plan.time, plan.request
    kept = f"{request.rate:.3f} (at most {request.bound:.3f})"
    lines += [
        f"correction rate {kept}, tokens per wave {time.tokens_per_wave:.2f}",
        f"rollout {time.exact_q_s:.1f} s: " + ", ".join(f"{name} {value:.1f}" for name, value in time.split.items()),
        f"student alone {time.student_only_s:.1f} s, so exact-q keeps {time.ratio:.2f} of its speed",
    ]
    if request.train:
        lines.append(f"update {time.update_s:.1f} s, weight sync {time.sync_s:.2f} s, step {time.step_s:.1f} s")
    if not plan.fits:
        changes = ", ".join(f"--{name} {value}" for name, value in plan.changes.items()) or "nothing that saki offers"
        lines.append(f"to make it fit: {changes}" if plan.remedied else f"even this does not suffice: {changes}")
    return "\n".join(lines)
