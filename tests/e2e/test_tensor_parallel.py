"""Several ranks through vLLM's worker processes: the tokens of one rank; and how an engine of several ranks ends."""

import random

import pytest
from serving import compile_bundle, generate

pytest.importorskip("vllm")

ENGINE = {
    "dtype": "float32", "max_model_len": 256, "max_num_batched_tokens": 32, "max_num_seqs": 2, "block_size": 16,
    "num_gpu_blocks_override": 40,
}  # fmt: skip
NEURON = {"num_batched_tokens_buckets": [32], "num_seqs_buckets": [2]}


def prompts_of(*lengths):
    rng = random.Random(5)
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


def tokens_of(model, folder, ranks, prompts, count, engine=ENGINE, neuron=NEURON, target="cpu", **options):
    name, engine = f"{target}-tp{ranks}", engine | {"tensor_parallel_size": ranks}
    reference = compile_bundle(model, folder, name, engine, neuron, target=target)
    return generate(reference, model, folder / name, prompts=prompts, max_tokens=count, rounds=["together"], **options)[
        "rounds"
    ][0]


def test_two_and_four_ranks_give_the_tokens_of_one_and_so_do_two_neuron_ranks(simulator, tiny, tmp_path):
    model = tiny("gqa")  # 4 heads, 2 KV heads: divided by two ranks, shared by four
    prompts = prompts_of(3, 31, 33, 100)
    one, two, four = (tokens_of(model, tmp_path, ranks, prompts, 24) for ranks in (1, 2, 4))
    neuron = tokens_of(model, tmp_path, 2, prompts, 24, target="trn2")  # its collectives: the simulator's
    assert one == two == four == neuron and all(len(tokens) == 24 for tokens in one)
