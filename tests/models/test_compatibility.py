import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from saki.models import TokenizerMismatchError, mask_padding_ids, resolve_pair, tiny_llama, tiny_qwen3

SIZE = 13  # tokens of the shared tokenizer


def _model(width, eos=None, generation_eos=None, build=tiny_qwen3):
    model = build(vocab_size=width, hidden=16, layers=1, heads=2, kv_heads=1)
    model.config.eos_token_id = eos
    model.generation_config.eos_token_id = generation_eos
    return model


@pytest.mark.parametrize("widths", [(16, 16), (16, 24), (24, 16), (13, 20)])
def test_widths_that_differ_in_padding_are_cut_to_the_real_ids(make_tokenizer, widths):
    student, teacher = _model(widths[0]), _model(widths[1], build=tiny_llama)
    spec = resolve_pair(student, teacher, make_tokenizer(), make_tokenizer())
    assert spec.vocab_size == SIZE
    ids = torch.tensor([[3, 4, 5]])
    shapes = {mask_padding_ids(model(ids).logits, spec.vocab_size).shape for model in (student, teacher)}
    assert shapes == {(1, 3, SIZE)}
    cut = [side for side, width in zip(("student", "teacher"), widths, strict=True) if width > SIZE]
    assert all(any(note.startswith(side) and "padding" in note for note in spec.notes) for side in cut)


def test_a_model_narrower_than_its_tokenizer_is_refused(make_tokenizer):
    with pytest.raises(TokenizerMismatchError, match="teacher has 12 logits, but its tokenizer has ids up to 12"):
        resolve_pair(_model(16), _model(12), make_tokenizer(), make_tokenizer())


def test_tokenizers_that_differ_are_refused_with_count_and_first_ids(make_tokenizer):
    words = ["<pad>", "<eos>", "<turn>", *"abcdefg", "x", "y", "z"]
    with pytest.raises(TokenizerMismatchError) as caught:
        resolve_pair(_model(16), _model(16), make_tokenizer(), make_tokenizer(words))
    assert str(caught.value) == (
        "teacher and student tokenizers differ at 3 ids (first: 10: 'x' against 'h', 11: 'y' against 'i', "
        "12: 'z' against 'j'); use a pair that shares a tokenizer"
    )


def test_a_token_that_one_side_lacks_is_a_difference(make_tokenizer):
    longer = make_tokenizer()
    longer.add_tokens(["<think>"], special_tokens=True)
    with pytest.raises(TokenizerMismatchError, match=r"at 1 ids .first: 13: '<think>' against no token"):
        resolve_pair(_model(16), _model(16), make_tokenizer(), longer)


def _bpe(merges):
    vocab = {token: index for index, token in enumerate(["<eos>", *"Hello", "He", "el", "lo", "Hel", "ell", "?"])}
    vocab = {token: index for index, token in enumerate(vocab)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


def test_equal_vocabularies_with_other_merges_are_refused():
    first = _bpe([("H", "e"), ("e", "l"), ("l", "o"), ("He", "l"), ("el", "l")])
    second = _bpe([("e", "l"), ("H", "e"), ("l", "o"), ("He", "l"), ("el", "l")])
    assert first.get_vocab() == second.get_vocab()
    with pytest.raises(TokenizerMismatchError, match=r"equal vocabularies but split .* of .* probe texts"):
        resolve_pair(_model(16), _model(16), first, second)


def test_ids_without_a_token_are_refused(make_tokenizer):
    tokenizer = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 4}, unk_token="a"))
    gapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    with pytest.raises(TokenizerMismatchError, match=r"2 ids below the largest token id 4 have no token .first: 2, 3"):
        resolve_pair(_model(16), None, gapped, None)


def test_stop_set_is_the_union_of_all_sources_of_both_models(make_tokenizer):
    student = _model(16, eos=1, generation_eos=[2, 1])
    teacher = _model(16, eos=5, generation_eos=None)
    spec = resolve_pair(
        student, teacher, make_tokenizer(), make_tokenizer(eos_token="<turn>", additional_special_tokens=["<eos>"])
    )
    assert spec.stop_token_ids == (1, 2, 5)
    assert any("end ids differ" in note and "teacher config [5]" in note for note in spec.notes)
    assert any("stop id 5 ('c') is an ordinary token" in note for note in spec.notes)


def test_stop_ids_outside_the_real_ids_are_left_out_with_a_note(make_tokenizer):
    spec = resolve_pair(_model(16, eos=[1, 14]), None, make_tokenizer(), None)
    assert spec.stop_token_ids == (1,)
    assert any("student config: end ids [14]" in note for note in spec.notes)


def test_a_pair_without_a_stop_id_is_refused(make_tokenizer):
    with pytest.raises(ValueError, match="no end-of-sequence id is known"):
        resolve_pair(_model(16), None, make_tokenizer(eos_token=None), None)


def test_padding_id_may_equal_a_stop_id(make_tokenizer):
    spec = resolve_pair(_model(16), None, make_tokenizer(pad_token="<eos>"), None)
    assert spec.pad_token_id == 1
    assert 1 in spec.stop_token_ids
    assert any("masked by position" in note for note in spec.notes)
    spec = resolve_pair(_model(16), None, make_tokenizer(pad_token=None), None)
    assert spec.pad_token_id == 1
    assert resolve_pair(_model(16), None, make_tokenizer(), None).pad_token_id == 0


def test_differing_templates_are_noted(make_tokenizer):
    student, teacher = make_tokenizer(), make_tokenizer()
    student.chat_template, teacher.chat_template = "{{ messages }}", "{{ messages }}!"
    spec = resolve_pair(_model(16), _model(16), student, teacher)
    assert any("chat templates differ" in note for note in spec.notes)


def test_equal_pairs_need_no_note(make_tokenizer):
    models = [_model(SIZE, eos=1, generation_eos=1) for _ in range(2)]
    spec = resolve_pair(*models, make_tokenizer(), make_tokenizer())
    assert (spec.stop_token_ids, spec.notes) == ((1,), ())
