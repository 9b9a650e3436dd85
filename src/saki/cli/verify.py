"""``saki verify``: a certificate that the engine samples exactly what it claims, on the user's own pair."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from tqdm import tqdm

from saki.cli.console import fresh_folder, pick_device, pick_dtype, print_json, run_facts
from saki.config import CommandParser, write_resolved
from saki.config.commands import CommonArguments, VerifyArguments
from saki.config.sources import LAB_STUDENT, first_rows, model_path, prompt_rows
from saki.data import render_prompts
from saki.files import write_text
from saki.models import load_pair
from saki.models.compatibility import PROBE_TEXTS
from saki.verification import Settings, verify_pair

SUMMARY = "Check on your own pair that the engine samples exactly the bridge law, and print a certificate."
EXAMPLE = "saki verify --model MODEL --teacher_model TEACHER --out runs/verify"


def parser() -> CommandParser:
    """The command's options."""
    return CommandParser([CommonArguments, VerifyArguments], "saki verify", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command; 1 if a check fails."""
    common, args = parser().parse(argv)
    settings = Settings(
        trust_region_radius=args.trust_region_radius,
        block_size=args.block_size,
        num_generations=args.num_generations,
        max_completion_length=args.max_completion_length,
        batch_rows=args.batch_rows,
        alpha=args.alpha,
        max_tokens=args.max_tokens,
        max_seconds=args.max_seconds,
        seed=args.seed,
    )
    dtype, device = pick_dtype(args.dtype), pick_device(args.device)
    folder = fresh_folder(common.out, "saki verify") if common.out else None
    if args.dataset is not None:
        rows = prompt_rows(args.dataset, args.dataset_split, args.seed)
    elif args.model == LAB_STUDENT:
        rows = prompt_rows("lab", None, args.seed)
    else:
        rows = [{"prompt": text} for text in PROBE_TEXTS]
    pair = load_pair(
        model_path(args.model),
        model_path(args.teacher_model),
        student_dtype=dtype,
        teacher_dtype=dtype,
        device=device,
        student_revision=args.revision,
        trust_remote_code=args.trust_remote_code,
    )
    rendered = render_prompts(first_rows(rows, args.limit), pair.tokenizer, max_prompt_length=args.max_prompt_length)
    facts = {
        "student": args.model,
        "teacher": args.teacher_model,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": args.dtype,
        "prompts": len(rendered.prompts),
        **run_facts(),
    }
    with tqdm(total=1.0, desc="verify", bar_format="{l_bar}{bar}| {elapsed}, {remaining} left") as bar:

        def progress(doing: str, share: float) -> None:
            bar.set_description(f"verify: {doing}", refresh=False)
            bar.update(share - bar.n)

        certificate = verify_pair(pair, rendered.prompts, settings, facts, progress)
    print(certificate.to_markdown())
    if folder:
        write_resolved(folder / "config.resolved.yaml", common, args, facts=run_facts())
        write_text(folder / "certificate.md", certificate.to_markdown())
        write_text(folder / "certificate.json", json.dumps(certificate.to_json(), indent=2))
        print(f"written to {folder}")
    if common.json:
        print_json(certificate.to_json())
    return 0 if certificate.passed else 1
