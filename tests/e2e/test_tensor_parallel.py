"""Several ranks through vLLM's worker processes: the tokens of one rank."""

import pytest
from serving import TINY_ENGINE, TINY_NEURON, compile_bundle, tiny_prompts, tokens_together

pytest.importorskip("vllm")


def tokens_of(model, folder, ranks, prompts, target="cpu"):
    name, engine = f"{target}-tp{ranks}", TINY_ENGINE | {"tensor_parallel_size": ranks}
    reference = compile_bundle(model, folder, name, engine, TINY_NEURON, target=target)
    return tokens_together(reference, model, folder / name, prompts, 24)


def test_two_and_four_ranks_give_the_tokens_of_one_and_so_do_two_neuron_ranks(simulator, tiny, tmp_path):
    model = tiny("gqa")  # 4 heads, 2 KV heads: divided by two ranks, shared by four
    prompts = tiny_prompts(3, 31, 33, 100)
    one, two, four = (tokens_of(model, tmp_path, ranks, prompts) for ranks in (1, 2, 4))
    neuron = tokens_of(model, tmp_path, 2, prompts, target="trn2")  # its collectives: the simulator's
    assert one == two == four == neuron and all(len(tokens) == 24 for tokens in one)
