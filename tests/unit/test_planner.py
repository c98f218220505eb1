"""The planner against brute force, the simulated scheduler against one that takes every step, and the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from fake_toolchain import write_recipe
from neuron_aot_runtime.contract.buckets import powers_of_two
from neuron_aot_runtime.contract.errors import UsageError

from neuron_aot.plan.cost import Cost, Speed, device_speed
from neuron_aot.plan.decode import DecodePlanner
from neuron_aot.plan.occupancy import Limits, Occupancy, simulate
from neuron_aot.plan.optimize import (
    TOKEN_SLACK,
    Pieces,
    choose_prefill,
    choose_sizes,
    prefill_work,
    prompt_pieces,
    token_padding,
)  # fmt: skip
from neuron_aot.plan.traffic import Traffic, read_traffic
from neuron_aot.recipe import load_recipe

SAMPLE = Path(__file__).parents[1] / "data" / "azure_llm_conv_sample.csv"
COST = Cost(linear=1e9, attention=1e6, weight_bytes=1e9, kv_bytes=1e5)
SPEED = Speed(flops=1e12, bandwidth=1e11)


def choices(candidates, limit: int):
    *rest, last = candidates
    for count in range(limit):
        for chosen in itertools.combinations(rest, count):
            yield (*chosen, last)


@pytest.mark.parametrize("seed", range(4))
def test_sizes_are_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    sizes, weights = np.arange(1, 9), rng.integers(0, 50, 8)

    def cost(chosen):
        return float(weights @ np.asarray(chosen)[np.searchsorted(chosen, sizes)])

    for limit, chosen in enumerate(choose_sizes(sizes, weights, 5), 1):
        assert cost(chosen) == min(map(cost, choices(sizes.tolist(), limit)))
        assert len(chosen) == limit and chosen[-1] == 8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("attention", [0.0, 0.001, 0.05])
def test_prefill_buckets_are_the_least_work_or_within_the_slack_of_the_fewest_tokens(seed, attention):
    rng = np.random.default_rng(seed)
    pieces = prompt_pieces(rng.integers(1, 300, 60), 128)
    terms = {"attention": attention, "contexts_C": np.array([320]), "block_size": 32}
    candidates = list(range(16, 129, 16))
    for limit, chosen in enumerate(choose_prefill(pieces, 128, 4, **terms), 1):
        every = list(choices(candidates, limit))
        fewest = min(token_padding(pieces, buckets) for buckets in every)
        assert chosen[-1] == 128 and len(chosen) == limit and not any(size % 16 for size in chosen)
        assert token_padding(pieces, chosen) <= fewest + TOKEN_SLACK + 1e-9
        within = [buckets for buckets in every if token_padding(pieces, buckets) <= fewest + TOKEN_SLACK]
        least = min(prefill_work(pieces, buckets, **terms) for buckets in within)
        # Exact on the convex hull of work and tokens; so near the least of all here.
        assert prefill_work(pieces, chosen, **terms) <= least * 1.02


def test_long_prompts_are_prefilled_in_segments():
    pieces = prompt_pieces(np.array([100, 300, 300]), 128)
    assert list(zip(*(values.tolist() for values in vars(pieces).values()), strict=True)) == [
        (44, 300, 2), (100, 100, 1), (128, 128, 2), (128, 256, 2),
    ]  # fmt: skip
    assert token_padding(Pieces(np.array([100]), np.array([100]), np.array([3])), (128,)) == pytest.approx(0.28)


@pytest.mark.parametrize(("requests", "longest"), [(3, 1_000_000), (20_000, 131_072), (20_000, 1_000_000)])
def test_however_long_the_largest_bucket_is_the_choice_is_no_worse_than_powers_of_two(requests, longest):
    lengths_R = np.random.default_rng(0).lognormal(8, 1.5, requests).astype(np.int64) % (longest - 1) + 1
    pieces = prompt_pieces(lengths_R, longest)
    default = powers_of_two(128, longest)
    terms = {"attention": 0.0, "contexts_C": np.array([longest]), "block_size": 32}
    chosen = choose_prefill(pieces, longest, len(default), **terms)[-1]
    assert token_padding(pieces, chosen) < token_padding(pieces, default) and not any(size % 16 for size in chosen)


def test_the_largest_token_bucket_need_not_be_a_multiple():
    pieces = prompt_pieces(np.array([10, 90, 100]), 100)
    chosen = choose_prefill(pieces, 100, 3, attention=0.0, contexts_C=np.array([128]), block_size=32)
    assert chosen[-1] == (16, 96, 100)


def every_step(traffic: Traffic, limits: Limits, unit: int) -> np.ndarray:
    """The same scheduler, one step at a time, for requests that fit a step and blocks that never run out."""
    waiting = list(range(len(traffic)))
    decoding: dict[int, list[int]] = {}
    now, prefilled_last = 0.0, False
    steps_BU = np.zeros((limits.max_num_seqs + 1, -(-limits.max_model_len // unit) + 1), np.int64)
    while waiting or decoding:
        here = [request for request in waiting if traffic.arrivals_R[request] <= now]
        if not here and not decoding:
            now = float(traffic.arrivals_R[waiting[0]])
        elif here and len(decoding) < limits.max_num_seqs and not (decoding and prefilled_last):
            budget = limits.max_num_batched_tokens
            for request in here:
                tokens = int(traffic.prompts_R[request])
                if len(decoding) == limits.max_num_seqs or tokens > budget:
                    break
                budget -= tokens
                waiting.remove(request)
                now += max(tokens * COST.rows(tokens) / SPEED.flops, COST.weight_bytes / SPEED.bandwidth)
                if traffic.outputs_R[request] > 1:
                    decoding[request] = [tokens + 1, int(traffic.outputs_R[request]) - 1]
            prefilled_last = True
        else:
            context = sum(state[0] for state in decoding.values())
            steps_BU[len(decoding), -(-max(state[0] for state in decoding.values()) // unit)] += 1
            flops = len(decoding) * COST.linear + COST.attention * context
            now += max(flops / SPEED.flops, (COST.weight_bytes + COST.kv_bytes * context) / SPEED.bandwidth)
            for request, state in list(decoding.items()):
                state[0] += 1
                state[1] -= 1
                if not state[1]:
                    del decoding[request]
            prefilled_last = False
    return steps_BU


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.5, 5.0])
def test_strides_count_what_single_steps_count(gap):
    rng = np.random.default_rng(7)
    prompts, outputs = rng.integers(1, 17, 80), rng.integers(1, 60, 80)
    traffic = Traffic(np.sort(rng.random(80)) * gap * 80, prompts, outputs)
    # Prompts of a step never exceed its budget, so none is split.
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=128, block_size=16, num_blocks=1000)
    found = simulate(traffic, COST, SPEED, limits, 16)
    assert found.sequence_steps == int((outputs - 1).sum())
    assert found.context_tokens == sum(
        range_sum for p, o in zip(prompts, outputs, strict=True) for range_sum in [sum(range(p + 1, p + o))]
    )
    # Strides average the duration of their steps; an arrival may fall one step earlier or later.
    expected = every_step(traffic, limits, 16)
    assert np.abs(found.steps_BU - expected).sum() <= 0.06 * expected.sum()
    assert 0 < found.busy_seconds <= found.seconds


def test_a_split_prompt_and_scarce_blocks_still_finish():
    traffic = Traffic(np.zeros(6), np.full(6, 100), np.full(6, 20))
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=128, block_size=16, num_blocks=16)
    found = simulate(traffic, COST, SPEED, limits, 128)
    assert found.sequence_steps == 6 * 19 and found.steps_BU[3:].sum() == 0, "blocks for two sequences only"


def test_replicas_share_the_requests():
    traffic = read_traffic(SAMPLE, max_model_len=8192)
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=8192, block_size=32, num_blocks=4096)
    one, four = (simulate(traffic, COST, SPEED, limits, 128, replicas=replicas) for replicas in (1, 4))
    assert one.sequence_steps == four.sequence_steps == int((traffic.outputs_R - 1).sum())
    assert one.context_tokens == four.context_tokens and four.mean_batch <= one.mean_batch


def test_decode_lists_obey_their_bound_and_more_is_never_worse():
    steps = np.random.default_rng(3).integers(0, 9, (9, 9))
    steps[0] = steps[:, 0] = 0
    planner = DecodePlanner(Occupancy(steps, 128, 1, 1.0, 1.0), attention=0.001, longest=1000)
    before = None
    for count in range(1, 9):
        choice = planner.choose(count, count - 1)
        assert choice.batches[-1] == 8 and all(context % 128 == 0 and context < 1000 for context in choice.contexts)
        assert planner.least_work() <= planner.work(choice.batches, (*choice.contexts, 1000))
        assert choice.work <= (before or choice.work)
        before = choice.work
    assert planner.work(choice.batches, (*choice.contexts, 1000)) == pytest.approx(planner.least_work())


def test_batches_beyond_the_recorded_ones_have_a_bucket_too():
    steps = np.zeros((257, 9), np.int64)
    steps[1:4, 1:4] = 1000
    batches = DecodePlanner(Occupancy(steps, 128, 1, 1.0, 1.0), attention=1e-5, longest=1024).choose(7, 2).batches
    assert batches[:3] == (1, 2, 3) and max(later / size for size, later in itertools.pairwise(batches)) <= 8


def test_an_unknown_target_needs_its_figures():
    with pytest.raises(UsageError, match="the speed of npu9 is not known"):
        device_speed("npu9", 1)
    assert device_speed("npu9", 1, tflops=2, gbytes=3) == Speed(2e12, 3e9)


@pytest.fixture
def run(run, tmp_path):
    write_recipe(tmp_path, config={"max_position_embeddings": 16384}, engine={"block_size": 32})
    return run


ARGUMENTS = ("plan", "recipe.yaml", "--traffic", str(SAMPLE), "--max-model-len", "8192")


def test_plan_beats_powers_of_two_and_writes_a_recipe_that_says_so(run, tmp_path):
    arguments = (*ARGUMENTS, "--max-prefill-buckets", "7")
    first = run(*arguments, "--json", "--write", "planned.yaml")
    data = json.loads(first.stdout.splitlines()[-1])
    assert first.stdout == run(*arguments, "--json").stdout, "deterministic"
    default = data["default"]
    assert default["num_batched_tokens_buckets"] == [128, 256, 512, 1024, 2048, 4096, 8192]
    buckets, name = data["num_batched_tokens_buckets"], "num_batched_tokens_buckets"
    assert len(buckets) == 7 and buckets[-1] == 8192 and not any(size % 16 for size in buckets)
    assert data["padding"][name] < 0.16 and default["padding"][name] > 0.4
    lengths = np.minimum(read_traffic(SAMPLE, max_model_len=8192).prompts_R, 8192)
    padded = np.asarray(buckets)[np.searchsorted(buckets, lengths)]
    assert data["padding"][name] == pytest.approx(padded.sum() / lengths.sum() - 1, abs=1e-5)
    assert data["padding"]["decode_context_length_buckets"] < default["padding"]["decode_context_length_buckets"]
    assert data["num_seqs_buckets"][-1] == 2 and data["held_out"]["chosen"]["padding"][name] < 0.35

    recipe = load_recipe(tmp_path / "planned.yaml")
    assert list(recipe.serving.neuron_config.num_batched_tokens_buckets) == buckets
    assert recipe.serving.max_model_len == 8192 and recipe.model == (tmp_path / "model").resolve()
    table = run(*ARGUMENTS)
    assert "default" in table.stdout and "held out" in table.stdout


def test_plan_keeps_to_a_number_of_programs(run):
    data = json.loads(run(*ARGUMENTS, "--max-programs", "9", "--json").stdout.splitlines()[-1])
    assert data["programs"] <= 9
    assert "--max-programs 2 or more" in run(*ARGUMENTS, "--max-programs", "1", code=2).stderr


def test_plan_says_when_requests_do_not_fit(run):
    error = run("plan", "recipe.yaml", "--traffic", str(SAMPLE), "--json", code=2)
    assert "are longer than max_model_len" in error.stderr and json.loads(error.stdout)["exit_code"] == 2


def test_traffic_without_any_decoding_keeps_the_default_batches(run, tmp_path):
    (tmp_path / "requests.csv").write_text("timestamp,prompt_tokens,output_tokens\n0,10,1\n0,20,0\n")
    data = json.loads(run("plan", "recipe.yaml", "--traffic", "requests.csv", "--json").stdout.splitlines()[-1])
    assert data["num_seqs_buckets"] == [1, 2] and data["num_batched_tokens_buckets"] == [128]


@pytest.mark.parametrize("amount", ["inf", "nan", "1e300", "0", "-1"])
@pytest.mark.parametrize("option", ["--max-hbm", "--max-compile-minutes", "--tflops", "--gbytes-per-second"])
def test_amounts_that_cannot_be_meant(run, option, amount):
    assert option in run(*ARGUMENTS, option, amount, code=2).stderr
