import pytest
import torch

from saki.models import mask_padding_ids


def test_padding_ids_get_no_probability_and_the_rest_renormalises():
    logits = torch.tensor([[1.0, 2.0, 3.0, 50.0]], dtype=torch.float64)
    probabilities = torch.softmax(mask_padding_ids(logits, 3), dim=-1)
    masked = torch.softmax(logits.index_fill(1, torch.tensor([3]), float("-inf")), dim=-1)
    assert torch.equal(probabilities, masked[:, :3])
    assert masked[0, 3] == 0


def test_cut_is_a_view_and_the_full_width_is_allowed():
    logits = torch.randn(2, 5, 7)
    assert mask_padding_ids(logits, 4).data_ptr() == logits.data_ptr()
    assert mask_padding_ids(logits, 7).shape == (2, 5, 7)


@pytest.mark.parametrize("vocab_size", [0, 8])
def test_sizes_outside_the_width_are_refused(vocab_size):
    with pytest.raises(ValueError, match="7 wide"):
        mask_padding_ids(torch.zeros(1, 7), vocab_size)
