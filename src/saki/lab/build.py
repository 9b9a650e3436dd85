"""Builds the embedded models from nothing and writes each as a Hugging Face folder."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from saki.files import whole_folder, write_text
from saki.lab.recipes import RECIPES, Recipe
from saki.lab.shipped import shipped_path
from saki.lab.splits import TEST_SETS, test_set

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

FACTS_FILE = "build.json"


def build_models(
    out_dir: str | Path,
    seed: int = 0,
    progress: bool | None = None,
    *,
    recipes: Sequence[Recipe] = RECIPES,
    num_problems: int = 100,
) -> dict[str, Any]:
    """Train the embedded models, save them and measure them as saved.

    ``out_dir`` receives a folder for each (config, generation config, bfloat16 safetensors weights, tokenizer) and
    ``build.json`` with the returned facts. Each model is saved as soon as it is trained. All of them take about 25
    minutes of one CPU core. A recipe that starts from another one's model takes the one built in the same call, and
    the shipped one (seed 0) where the call does not build it; the facts say which.

    Args:
        out_dir: Folder to write to; made if missing.
        seed: Seed of weights, corpora and measurement. The same seed gives the same weights bit for bit on one
            kind of machine with one number of threads and one version of torch.
        progress: True shows a progress bar with rate and time left, False none; None shows it on a terminal.
        recipes: What to build, in this order.
        num_problems: Test problems a set in the measurement (8 samples each); 0 skips it.

    Returns:
        Facts under each recipe's name: seed, steps, seconds, threads, versions, parameters, recipe, the model it
        started from (``built``, ``shipped`` or empty), and ``scores``, the Mean@8 and Pass@8 in percent for every
        test set and on average (``macro``).

    Raises:
        ValueError: If ``out_dir`` already holds one of the folders.
    """
    out_dir = Path(out_dir)
    taken = [recipe.name for recipe in recipes if (out_dir / recipe.name).exists()]
    if taken:
        raise ValueError(f"{out_dir} already holds {' and '.join(taken)}; choose another folder or remove them")
    out_dir.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {}
    for recipe in recipes:
        built = recipe.starts_from in facts
        start = None
        if recipe.starts_from:
            start = out_dir / recipe.starts_from if built else shipped_path(recipe.starts_from)
        made = build_model(recipe, out_dir / recipe.name, seed, progress, num_problems, start)
        origin = "" if start is None else "built" if built else "shipped"
        facts[recipe.name] = {**made, "started_from": origin}
        write_text(out_dir / FACTS_FILE, json.dumps(facts, indent=2) + "\n")
    return facts


def build_model(
    recipe: Recipe,
    folder: Path,
    seed: int = 0,
    progress: bool | None = None,
    num_problems: int = 100,
    start: Path | None = None,
) -> dict[str, Any]:
    """Train, save and measure one model.

    Args:
        recipe: What to train and how.
        folder: Folder to write to; made if missing.
        seed: Seed of weights, corpus and measurement.
        progress: As in `build_models`.
        num_problems: As in `build_models`.
        start: Folder of the model to start from, for a recipe that starts from another.

    Returns:
        Facts of the build, as `build_models` returns them for each model, but where it started from.
    """
    import torch
    import transformers
    from tqdm.auto import tqdm

    from saki.lab.supervise import train
    from saki.lab.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    started = time.perf_counter()
    disable = None if progress is None else not progress  # None leaves it to tqdm: a bar on a terminal only
    with tqdm(total=recipe.num_steps, desc=recipe.name, unit="step", disable=disable) as bar:

        def advance(loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

        model = train(recipe, tokenizer, seed, advance, start)
    seconds = time.perf_counter() - started
    save(model, tokenizer, folder)
    return {
        "seed": seed,
        "steps": recipe.num_steps,
        "seconds": round(seconds, 1),
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "parameters": model.num_parameters(),
        "recipe": json.loads(json.dumps(asdict(recipe))),
        "scores": scores(folder, seed, num_problems) if num_problems else {},
    }


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save a model in bfloat16 with its tokenizer, as a plain Hugging Face folder.

    Args:
        model: The trained model; its weights are rounded to bfloat16 in place.
        tokenizer: The pair's tokenizer.
        folder: Folder to write to; made if missing.
    """
    from transformers import GenerationConfig

    from saki.lab.measure import MAX_COMPLETION_LENGTH

    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MAX_COMPLETION_LENGTH,
    )
    with whole_folder(folder) as unfinished:
        model.bfloat16().save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)


def scores(folder: Path, seed: int = 0, num_problems: int = 100) -> dict[str, dict[str, float]]:
    """Measure a saved model on the seven test sets, its weights loaded as float32.

    Args:
        folder: A folder that `save` wrote.
        seed: Seed of the samples; the questions are those of seed 0.
        num_problems: Problems a set.

    Returns:
        ``mean_at_8``, ``pass_at_8`` (percent) and ``mean_length`` (tokens) by test set, and their plain averages
        over the sets under ``macro``.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from saki.lab.measure import measure

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    table: dict[str, dict[str, float]] = {}
    for name in TEST_SETS:
        score = measure(model, tokenizer, test_set(name, num_problems), generator)
        table[name] = {
            "mean_at_8": round(score.mean_at_k, 2),
            "pass_at_8": round(score.pass_at_k, 2),
            "mean_length": round(score.mean_length, 2),
        }
    table["macro"] = {key: round(fmean(row[key] for row in table.values()), 2) for key in table[TEST_SETS[0]]}
    return table
