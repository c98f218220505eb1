import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from neuron_aot_runtime.vllm.host_sampler import HostTopKTopPSampler, _draw, _kept
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

VOCAB = 1000


@pytest.mark.parametrize("top_k", [1, 2, 50, VOCAB])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("scale", [0.1, 1, 10])
def test_keeps_the_tokens_that_vllm_keeps(top_k, top_p, scale):
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)) * scale
    reference = apply_top_k_top_p_pytorch(
        logits.clone(),
        torch.full((4,), top_k) if top_k < VOCAB else None,
        torch.full((4,), top_p) if top_p < 1 else None,
    )
    for row, masked in zip(logits.numpy(), reference.numpy(), strict=True):
        kept = _kept(row, top_k, top_p)
        wanted = np.flatnonzero(masked > -np.inf)
        found = np.arange(VOCAB) if kept is None else kept
        # vLLM cumulates in float32, so a token right at the border may fall on either side.
        assert len(np.setxor1d(found, wanted)) <= 1


def test_draws_follow_the_probabilities():
    row = np.log(np.array([0.5, 0.0, 0.25, 0.125, 0.125], np.float32) + 1e-38)
    draws = [_draw(row, None, (i + 0.5) / 1000) for i in range(1000)]
    assert np.bincount(draws, minlength=5).tolist() == [500, 0, 250, 125, 125]
    draws = [_draw(row, np.array([2, 4]), (i + 0.5) / 300) for i in range(300)]
    assert np.bincount(draws, minlength=5).tolist() == [0, 0, 200, 0, 100]


def test_a_masked_token_is_never_drawn():
    row = np.full(10, -np.inf, np.float32)
    row[[3, 7]] = 0
    assert {_draw(row, _kept(row, 10, 0.9), draw) for draw in (0.0, 0.49, 0.5, 1 - 1e-16)} == {3, 7}
    assert _kept(row, 10, 0.4).tolist() == [3, 7], "ties stay together"


def test_a_seed_belongs_to_its_row():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    sampler = HostTopKTopPSampler("raw_logprobs", False)

    def run(rows, row):
        tokens, _ = sampler(logits[rows].clone(), {row: torch.Generator().manual_seed(9)}, None, None)
        return tokens[row].item()

    assert run([0, 1, 2], 1) == run([1], 0) == run([2, 0, 1], 2)


@pytest.mark.parametrize("mode", ["processed_logits", "processed_logprobs"])
def test_processed_logprobs_are_those_after_the_filters(mode):
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2))
    k = torch.tensor([5, VOCAB], dtype=torch.int32)
    _, returned = HostTopKTopPSampler(mode, False)(logits.clone(), {}, k, None)
    assert (returned[0] > -torch.inf).sum() == 5
    wanted = logits if mode == "processed_logits" else logits.log_softmax(-1)
    torch.testing.assert_close(returned[1], wanted[1])
