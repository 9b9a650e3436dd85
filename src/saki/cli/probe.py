"""``saki probe``: freeze positions of the initial student, measure checkpoints there, compare methods."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from saki.analysis.figure2 import draw_figure2
from saki.analysis.figures import RADIUS
from saki.analysis.metrics_file import merge_steps, read_metrics, series
from saki.analysis.probe_comparison import ProbeComparison, compare_probe
from saki.analysis.probe_tables import probe_tables, write_comparison
from saki.analysis.publication import publish
from saki.cli.console import fresh_folder, pick_device, pick_dtype, print_json, progress_bar, run_facts, subcommand
from saki.cli.engines import load_rollout_inputs
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments
from saki.config.probe_arguments import ProbeBuildArguments, ProbeCompareArguments, ProbeMeasureArguments
from saki.config.sources import model_path
from saki.models import load_causal_lm, load_tokenizer, logit_width, tokenizer_home
from saki.probe import (
    Measurement,
    Probe,
    ProbeFileError,
    ProbeSettings,
    build_probe,
    measure_probe,
    read_measurement,
    read_probe,
    vocabulary_digest,
    write_measurement,
    write_probe,
)
from saki.rollout import HFDecoder, model_checksum

EXAMPLES = {
    "build": "saki probe build --num_pairs 64 --top_k 4 --limit 96 --out runs/probe",
    "measure": "saki probe measure --probe runs/probe --model runs/a/checkpoints/checkpoint-50 --out runs/a-probe",
    "compare": "saki probe compare --probe runs/probe --measured runs/saki/probe --reference runs/trb/probe",
}
SUMMARIES = {
    "build": "Roll out the initial student, and freeze corrections and accepted positions matched to them.",
    "measure": "C1, Ck, KL(T||S), KL(S||T) and entropy of checkpoints at every position of a probe.",
    "compare": "Prompt-equal paired differences of two methods, clustered intervals, conflict quartiles, and Figure 2.",
}
_KINDS: dict[str, Any] = {
    "build": ProbeBuildArguments,
    "measure": ProbeMeasureArguments,
    "compare": ProbeCompareArguments,
}
USAGE = f"""usage: saki probe build|measure|compare [--key value ...]

saki probe build      {SUMMARIES["build"]}
saki probe measure    {SUMMARIES["measure"]}
saki probe compare    {SUMMARIES["compare"]}

saki probe build --help shows its options.
example: {EXAMPLES["build"]}"""

_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


def parser(name: str) -> CommandParser:
    """Options of one of the sub-commands."""
    return CommandParser([CommonArguments, _KINDS[name]], f"saki probe {name}", SUMMARIES[name], EXAMPLES[name])


def run(argv: Sequence[str]) -> int:
    """Run the command.

    Raises:
        ValueError: If the first word is none of the sub-commands.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name = subcommand(argv, _KINDS, "saki probe")
    common, args = parser(name).parse(argv[1:])
    actions: dict[str, Callable[[CommonArguments, Any], dict[str, Any]]]
    actions = {"build": _build, "measure": _measure, "compare": _compare}
    summary = actions[name](common, args)
    if common.json:
        print_json(summary)
    return 0


def _build(common: CommonArguments, args: ProbeBuildArguments) -> dict[str, Any]:
    if common.out is None:
        raise UsageError("saki probe build needs --out DIR to write the probe to")
    folder = fresh_folder(common.out, "saki probe build")
    assert args.max_completion_length is not None  # since __post_init__
    settings = ProbeSettings(
        num_pairs=args.num_pairs,
        top_k=args.top_k,
        trust_region_radius=args.trust_region_radius,
        num_generations=args.num_generations,
        max_completion_length=args.max_completion_length,
        block_size=args.block_size,
        batch_rows=args.batch_rows,
        teacher_top=args.teacher_top,
        seed=args.seed,
    )
    pair, rendered = load_rollout_inputs(args)
    origin = {"student": args.model, "teacher": args.teacher_model, "dataset": args.dataset, "dtype": args.dtype}
    with progress_bar("probe", "completions") as progress:
        probe = build_probe(pair, rendered.prompts, settings, {**origin, **run_facts()}, progress)
    probe = write_probe(folder, probe)
    facts = probe.facts
    print(
        f"{args.num_pairs} corrections and as many accepted positions of {facts['num_prompts']} prompts, out of "
        f"{facts['num_corrections_with_own_prefix']} corrections in {facts['num_tokens']} tokens; "
        f"{facts['num_matched_in_prompt']} matched in their prompt, {facts['mean_distance_of_pairs']:.2f} tokens apart"
    )
    laws = "whole" if probe.teacher.whole else f"top {probe.teacher.ranked_ids.shape[1]} tokens and the rest"
    print(f"teacher laws: {laws}; probe {probe.digest[:8]} written to {folder}")
    return {"probe": str(folder), "digest": probe.digest, "num_positions": len(probe), "facts": dict(facts)}


def _measure(common: CommonArguments, args: ProbeMeasureArguments) -> dict[str, Any]:
    if common.out is None or args.probe is None or not args.model:
        raise UsageError("saki probe measure needs --probe DIR, --model CHECKPOINT ... and --out DIR")
    probe = read_probe(Path(args.probe))
    folder = fresh_folder(common.out, "saki probe measure")
    steps: list[int | None] = [*args.steps] or [checkpoint_step(name) for name in args.model]
    names = file_names(args.model)
    found = []
    # All are measured before any is written: a mistake in the last one leaves no folder behind.
    for model, step in zip(tqdm(args.model, desc="measure", unit=" models"), steps, strict=True):
        found.append(_measure_one(probe, model, step, args))
    summary = {}
    print(
        f"{'model':32} {'step':>6} {'C1':>8} {'C' + str(found[0].top_k):>8} {'KL(T||S)':>9} {'KL(S||T)':>9} {'H(S)':>8}"
    )
    for model, name, each in zip(args.model, names, found, strict=True):
        write_measurement(folder / f"{name}.parquet", each)
        means = each.means()
        shown = "" if each.step is None else each.step
        print(
            f"{model[-32:]:32} {shown:>6} {means['c1']:8.4f} {means['c_top']:8.4f} {means['kl_teacher_student']:9.4f} "
            f"{means['kl_student_teacher']:9.4f} {means['entropy']:8.4f}"
        )
        summary[model] = {"step": each.step, "file": str(folder / f"{name}.parquet"), **means}
    print(f"means over {len(probe)} positions; figures of each position written to {folder}")
    return {"top_k": found[0].top_k, "models": summary}


def _measure_one(probe: Probe, model: str, step: int | None, args: ProbeMeasureArguments) -> Measurement:
    path = model_path(model)
    tokenizer = load_tokenizer(tokenizer_home(path), trust_remote_code=args.trust_remote_code)
    if vocabulary_digest(tokenizer, probe.vocab_size) != probe.vocabulary:
        raise UsageError(
            f"the tokenizer of {model} is not that of the probe, which has {probe.vocab_size} ids; measure models of "
            "the family that it was built with"
        )
    device = pick_device(args.device)
    loaded = load_causal_lm(path, dtype=pick_dtype(args.dtype), device=device, trust_remote_code=args.trust_remote_code)
    if logit_width(loaded) < probe.vocab_size:
        raise UsageError(f"{model} has {logit_width(loaded)} logits, the probe is over {probe.vocab_size} ids")
    decoder = HFDecoder(loaded, probe.vocab_size)
    measures = measure_probe(decoder, probe, args.top_k)
    checksum = model_checksum(decoder.named_tensors())
    return Measurement(measures, probe.digest, args.label or model, step, args.top_k or probe.top_k, checksum)


def _compare(common: CommonArguments, args: ProbeCompareArguments) -> dict[str, Any]:
    if args.probe is None or not args.measured or not args.reference:
        raise UsageError("saki probe compare needs --probe DIR, --measured FILE ... and --reference FILE ...")
    folder = fresh_folder(common.out, "saki probe compare") if common.out else None
    probe = read_probe(Path(args.probe))
    measured, reference = (measurements(paths) for paths in (args.measured, args.reference))
    name = args.measured_name or _common_label(measured) or "measured"

    def against(other: Sequence[Measurement], given: str | None, fallback: str) -> ProbeComparison:
        names = (name, given or _common_label(other) or fallback)
        return compare_probe(probe, measured, other, names, args.resamples, args.seed)

    comparison = against(reference, args.reference_name, "reference")
    control = against(measurements(args.control), args.control_name, "control") if args.control else None
    for table in [table for each in (comparison, control) if each for table in probe_tables(each)]:
        print(table.markdown())
    if folder:
        write_comparison(folder, comparison)
        if control:
            write_comparison(folder / "control", control)
        active = active_steps(args.measured) if args.active_steps is None else args.active_steps
        publish(folder, [draw_figure2(comparison, control, active)])
        print(f"tables, effects.csv and figure2 (svg, pdf, png, csv) written to {folder}")
    found = {"measured": name, "reference": comparison.reference, "top_k": comparison.top_k}
    shown = {**found, "effects": _json_effects(comparison)}
    return {**shown, "control": control.reference, "control_effects": _json_effects(control)} if control else shown


def _json_effects(comparison: ProbeComparison) -> list[dict[str, Any]]:
    effects = [dataclasses.asdict(effect) for effect in comparison.effects]
    for effect in effects:  # JSON has no NaN
        effect["seed_sd"] = None if effect["num_seeds"] < 2 else effect["seed_sd"]
    return effects


def active_steps(paths: Sequence[str]) -> int | None:
    """Last step with a radius above 0 in the runs that measurements lie in (``RUN/probe``), where they lie in runs.

    Raises:
        ValueError: If the metrics of such a run are damaged.
    """
    homes = {folder.parent for folder in (path if path.is_dir() else path.parent for path in map(Path, paths))}
    files = [home / "metrics.jsonl" for home in sorted(homes) if (home / "metrics.jsonl").is_file()]
    found = [series(merge_steps(read_metrics(path)), RADIUS) for path in files]
    active = [int(step) for steps, radii in found for step, radius in zip(steps, radii, strict=True) if radius > 0]
    return max(active, default=None)


def measurements(paths: Sequence[str]) -> list[Measurement]:
    """Measurements from files and folders of files, in the order given.

    Raises:
        ProbeFileError: If a file cannot be read, or a folder holds none.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise ProbeFileError(f"{path} holds no measurement (*.parquet); write some with saki probe measure")
        files += inside
    return [read_measurement(path) for path in files]


def checkpoint_step(name: str) -> int | None:
    """The step of a folder named ``checkpoint-N``, else None."""
    match = _CHECKPOINT.match(Path(name).name)
    return int(match[1]) if match else None


def file_names(models: Sequence[str]) -> list[str]:
    """A file name for each model: as many last parts of its path as tell all of them apart, joined by dashes.

    Raises:
        UsageError: If a model is named twice.
    """
    parts = [[part for part in Path(model).parts if part not in ("/", "..", ".")] or ["model"] for model in models]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["-".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    twice = next(model for model in models if models.count(model) > 1 or names.count(names[models.index(model)]) > 1)
    raise UsageError(f"{twice} is named twice; name each model once")


def _common_label(side: Sequence[Measurement]) -> str | None:
    labels = {each.label for each in side}
    return labels.pop() if len(labels) == 1 else None
