"""Whether a student and a teacher speak of the same tokens, and what both must share for a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saki.types import EXACT_LAW, REFUSED_SAMPLING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROBE_TEXTS = (
    "Hello, world! It's 12:30, isn't it?",
    "  leading, double  and trailing spaces  ",
    "tabs\tand\nnew lines\n\n\nand\r\nreturns",
    "x = 3.14159 * (2**10) - 1234567890; y_1 != z[0]",
    r"Find $\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}$ and answer in \boxed{}.",
    "def f(x):\n    return {'a': x, \"b\": [x] * 2}  # comment",
    "naïve café, Straße, Ελλάδα, Привет, こんにちは, 你好，世界",
    "🙂👍🏽 ½ ² — “quotes” … \u200b\u00a0end",
)
"""Texts whose token ids must agree: equal vocabularies can still merge or normalise differently."""


_NEUTRAL = {
    "do_sample": (None, True, False),  # what it asks for is said by the options beside it
    **dict.fromkeys(("temperature", "top_p", "typical_p"), (None, 1.0)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "length_penalty"), (None, 1.0)),
    **dict.fromkeys(("guidance_scale", "num_beams"), (None, 1)),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"), (None, 0)),
    **dict.fromkeys(("min_length", "min_new_tokens", "penalty_alpha"), (None, 0)),
}
"""Values of sampling options that leave the distribution as it is."""


class TokenizerMismatchError(ValueError):
    """Student and teacher do not share a tokenizer, or a tokenizer does not fit its model."""


@dataclass(frozen=True)
class PairSpec:
    """What a student and a teacher share.

    Attributes:
        vocab_size: Number of real ids. Every id below it is a token of both tokenizers; logits at or above it are
            padding and are cut from both models.
        stop_token_ids: Sorted ids, any of which ends a completion, all below ``vocab_size``.
        pad_token_id: Id that fills padded positions. Padding is masked by position, so it may equal a stop id.
        notes: What was cut or resolved, one sentence each, for the log.
    """

    vocab_size: int
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    notes: tuple[str, ...] = ()


def resolve_pair(
    student_model: PreTrainedModel,
    teacher_model: PreTrainedModel | None,
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase | None,
) -> PairSpec:
    """Compare the two sides and resolve the vocabulary and the stop set for both.

    The real vocabulary is the largest tokenizer id + 1. Widths above it are padding and are cut, also where the two
    models differ in them. The stop set is the union of the end-of-sequence ids that the configs, the generation
    configs and the tokenizers of both sides name; ids outside the real vocabulary cannot be sampled and are left
    out with a note. Chat templates may differ, since prompts are rendered once, with the student's.

    Args:
        student_model: The student.
        teacher_model: The teacher, or None for a student alone.
        student_tokenizer: The student's tokenizer.
        teacher_tokenizer: The teacher's tokenizer. Without one, only the width of the teacher is checked.

    Returns:
        What both share.

    Raises:
        TokenizerMismatchError: If the tokenizers differ in tokens or in how they split text, if ids below the
            real vocabulary have no token, or if a model is narrower than its tokenizer.
        ValueError: If no stop id is known.
    """
    notes: list[str] = []
    vocab = student_tokenizer.get_vocab()
    if not vocab:
        raise TokenizerMismatchError("the student's tokenizer has no tokens; give a tokenizer with a vocabulary")
    vocab_size = max(vocab.values()) + 1
    _refuse_gaps(vocab, vocab_size)
    if teacher_tokenizer is not None and teacher_tokenizer is not student_tokenizer:
        compare_tokenizers(student_tokenizer, teacher_tokenizer)
        if student_tokenizer.chat_template != teacher_tokenizer.chat_template:
            notes.append("chat templates differ; prompts are rendered once, with the student's")
    elif teacher_model is not None and teacher_tokenizer is None:
        notes.append("no teacher tokenizer was given; only the teacher's width was checked")
    sides: list[tuple[str, Any, Any]] = [("student", student_model, student_tokenizer)]
    if teacher_model is not None:
        sides.append(("teacher", teacher_model, teacher_tokenizer))
    for side, model, _ in sides:
        width = logit_width(model)
        if width < vocab_size:
            raise TokenizerMismatchError(
                f"the {side} has {width} logits, but its tokenizer has ids up to {vocab_size - 1}; resize the "
                "model's embeddings or use the tokenizer that it was trained with"
            )
        if width > vocab_size:
            notes.append(f"{side}: {width - vocab_size} padding ids of {width} cut, {vocab_size} are real")
    for side, model, _ in sides:
        _note_sampling_options(side, model, notes)
    stop_ids = _resolve_stop_ids(sides, vocab_size, notes)
    _note_ordinary_stop_ids(student_tokenizer, stop_ids, notes)
    pad_id = _resolve_pad_id(student_model, student_tokenizer, vocab_size, stop_ids, notes)
    return PairSpec(vocab_size, stop_ids, pad_id, tuple(notes))


def logit_width(model: Any) -> int:
    """Number of logits of a model: rows of its output embedding, or ``vocab_size`` of its config without one."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    weight = getattr(head, "weight", None)
    return int(_text_config(model).vocab_size if weight is None else weight.shape[0])


def _refuse_gaps(vocab: dict[str, int], vocab_size: int) -> None:
    gaps = sorted(set(range(vocab_size)) - set(vocab.values()))
    if gaps:
        shown = ", ".join(map(str, gaps[:3]))
        raise TokenizerMismatchError(
            f"{len(gaps)} ids below the largest token id {vocab_size - 1} have no token (first: {shown}), so a model "
            "could sample an id that means nothing; add tokens for these ids or use another pair"
        )


def compare_tokenizers(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Refuse two tokenizers that differ in tokens or in how they split text. No model is needed for it.

    Raises:
        TokenizerMismatchError: With the number of ids that differ, and the first of them with both tokens.
    """
    _compare_tokens(student.get_vocab(), teacher.get_vocab())
    _compare_encodings(student, teacher)


def _compare_tokens(student: dict[str, int], teacher: dict[str, int]) -> None:
    student_tokens = {index: token for token, index in student.items()}
    teacher_tokens = {index: token for token, index in teacher.items()}
    ids = sorted(student_tokens.keys() | teacher_tokens.keys())
    differing = [index for index in ids if student_tokens.get(index) != teacher_tokens.get(index)]
    if not differing:
        return

    def name(tokens: dict[int, str], index: int) -> str:
        return repr(tokens[index]) if index in tokens else "no token"

    shown = ", ".join(
        f"{index}: {name(teacher_tokens, index)} against {name(student_tokens, index)}" for index in differing[:3]
    )
    raise TokenizerMismatchError(
        f"teacher and student tokenizers differ at {len(differing)} ids (first: {shown}); "
        "use a pair that shares a tokenizer"
    )


def _compare_encodings(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Equal vocabularies can still split text differently: merges, normalisation, handling of added tokens."""
    added = [str(token) for _, token in sorted(student.added_tokens_decoder.items())]
    texts = [*PROBE_TEXTS, *(f"a {token} b{token}" for token in added)]
    ours = student(texts, add_special_tokens=False)["input_ids"]
    theirs = teacher(texts, add_special_tokens=False)["input_ids"]
    differing = [index for index in range(len(texts)) if list(ours[index]) != list(theirs[index])]
    if differing:
        first = differing[0]
        raise TokenizerMismatchError(
            f"teacher and student tokenizers have equal vocabularies but split {len(differing)} of {len(texts)} probe "
            f"texts differently (first: {texts[first]!r}: {list(theirs[first])} against {list(ours[first])}); "
            "use a pair that shares a tokenizer"
        )


def _text_config(model: Any) -> Any:
    config = model.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def _as_ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _resolve_stop_ids(sides: Iterable[tuple[str, Any, Any]], vocab_size: int, notes: list[str]) -> tuple[int, ...]:
    sources: dict[str, tuple[int, ...]] = {}
    for side, model, tokenizer in sides:
        generation = getattr(model, "generation_config", None)
        sources[f"{side} config"] = _as_ids(getattr(_text_config(model), "eos_token_id", None))
        sources[f"{side} generation config"] = _as_ids(getattr(generation, "eos_token_id", None))
        sources[f"{side} tokenizer"] = _as_ids(getattr(tokenizer, "eos_token_id", None))
    stop_ids: set[int] = set()
    for source, ids in sources.items():
        outside = [index for index in ids if not 0 <= index < vocab_size]
        if outside:
            notes.append(f"{source}: end ids {outside} lie outside the {vocab_size} real ids and were left out")
        stop_ids.update(index for index in ids if 0 <= index < vocab_size)
    if not stop_ids:
        raise ValueError(
            "no end-of-sequence id is known: config, generation config and tokenizer name none below "
            f"{vocab_size}; set eos_token on the tokenizer or eos_token_id in the model's config"
        )
    named = {source: ids for source, ids in sources.items() if ids}
    if len({frozenset(ids) for ids in named.values()}) > 1:
        listed = ", ".join(f"{source} {list(ids)}" for source, ids in named.items())
        notes.append(f"end ids differ ({listed}); both models stop at any of {sorted(stop_ids)}")
    return tuple(sorted(stop_ids))


def _note_sampling_options(side: str, model: Any, notes: list[str]) -> None:
    """Generation configs carry sampling options for chat; they are not used, and that has to be known."""
    generation = getattr(model, "generation_config", None)
    given = {name: getattr(generation, name, None) for name in REFUSED_SAMPLING}
    listed = ", ".join(f"{name} = {value}" for name, value in given.items() if value not in _NEUTRAL.get(name, (None,)))
    if listed:
        notes.append(f"{side}: its generation config sets {listed}, which is not used: {EXACT_LAW}")


def _note_ordinary_stop_ids(tokenizer: PreTrainedTokenizerBase, stop_ids: tuple[int, ...], notes: list[str]) -> None:
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    for index in stop_ids:
        if index not in special:
            token = tokenizer.convert_ids_to_tokens(index)
            notes.append(f"stop id {index} ({token!r}) is an ordinary token of the tokenizer; check the configs")


def _resolve_pad_id(
    model: Any, tokenizer: PreTrainedTokenizerBase, vocab_size: int, stop_ids: tuple[int, ...], notes: list[str]
) -> int:
    candidates = (tokenizer.pad_token_id, getattr(_text_config(model), "pad_token_id", None))
    for candidate in candidates:
        if candidate is not None and 0 <= candidate < vocab_size:
            if candidate in stop_ids:
                notes.append(f"padding id {candidate} is also a stop id; padding is masked by position")
            return int(candidate)
    notes.append(f"no padding id is set; stop id {stop_ids[0]} fills padded positions, which are masked by position")
    return stop_ids[0]
