"""vLLM in this process with the fake device: run by tests/unit/test_vllm_plugin.py, in a process of its own.

vLLM chooses its platform once per process, so the environment is set before it is imported.
"""

import os

os.environ.update(
    NEURON_COMPILED_ARTIFACTS="fake@bundle",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    HF_HUB_OFFLINE="1",
)

import random
from contextlib import contextmanager

import numpy as np
import pytest
from fake_bundle import ENGINE, VOCAB, FakeBundle, FakeDevice, expected, logits_of, make_manifest, make_model
from neuron_aot_runtime import device
from neuron_aot_runtime.contract.errors import BundleMissError, ConfigError
from neuron_aot_runtime.vllm import active, platform
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(model, monkeypatch):
    """Context manager: an engine on a bundle for the fake device, and that device."""

    @contextmanager
    def start(manifest=None, **arguments):
        bundle = FakeBundle(manifest or make_manifest())
        machine = FakeDevice()
        monkeypatch.setattr(active, "fetch_bundle", lambda reference: bundle)
        monkeypatch.setattr(device, "open_device", lambda target, place=None: machine)
        active.open_once.cache_clear()
        platform._verify_inputs.cache_clear()
        engine = {name: value for name, value in bundle.manifest.serving.engine.items()}
        llm = LLM(**(engine | {"model": str(model), "skip_tokenizer_init": True} | arguments))
        try:
            yield llm, machine
        finally:
            llm.llm_engine.engine_core.shutdown()

    return start


def prompts_of(*lengths, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


def generate(llm, prompts, params):
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, **more)


def phases(machine):
    return {name.partition("_")[0] for name in machine.executed}


LENGTHS = (1, 3, 15, 16, 17, 33, 63, 64, 65, 100, 129, 200)


@pytest.mark.parametrize("on_device", [False, True])
def test_continuous_batching_and_segments_give_the_right_tokens(serve, on_device):
    prompts = prompts_of(*LENGTHS)
    with serve(make_manifest(greedy=on_device)) as (llm, machine):
        together = generate(llm, prompts, greedy(20))
        again = generate(llm, prompts, greedy(20))
        alone = [generate(llm, [prompt], greedy(20))[0] for prompt in prompts]
        used = set(machine.executed)
    want = [expected(prompt, 20) for prompt in prompts]
    assert together == want
    assert again == want
    assert alone == want
    assert {"decode_b1_c128", "decode_b1_c256", "decode_b4_c128", "decode_b4_c256"} <= used
    assert {"prefill_s16_c16", "prefill_s16_c256", "prefill_s64_c64", "prefill_s64_c256"} <= used


def test_prefix_cache_hits_skip_computed_blocks(serve):
    (shared,) = prompts_of(96)
    prompts = [shared + tail for tail in prompts_of(5, 20, 40, seed=1)]
    with serve() as (llm, machine):
        assert generate(llm, [shared], greedy(4)) == [expected(shared, 4)]
        machine.executed.clear()
        assert generate(llm, prompts, greedy(8)) == [expected(prompt, 8) for prompt in prompts]
        prefills = [name for name in machine.executed if name.startswith("prefill")]
    assert sorted(prefills) == ["prefill_s16_c256", "prefill_s64_c256", "prefill_s64_c256"]


def test_preempted_requests_resume_where_they_were(serve):
    # 17 blocks of 16 tokens for four sequences that grow to 120 tokens each.
    prompts = prompts_of(20, 20, 20, 20)
    manifest = make_manifest(engine={"num_gpu_blocks_override": 18})
    with serve(manifest) as (llm, _):
        preempted = []
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        original = scheduler._preempt_request
        scheduler._preempt_request = lambda request, *a, **k: (
            preempted.append(request.request_id),
            original(request, *a, **k),
        )
        assert generate(llm, prompts, greedy(100)) == [expected(prompt, 100) for prompt in prompts]
    assert preempted


def test_long_prompts_under_pressure_finish(serve):
    # Every prompt takes most of the cache, with and without what others left in it.
    prompts = prompts_of(200, 180, 30, 220, 10, 90, 150, 60)
    manifest = make_manifest(engine={"num_gpu_blocks_override": 18, "enable_prefix_caching": False})
    with serve(manifest) as (llm, _):
        assert generate(llm, prompts, greedy(30)) == [expected(prompt, 30) for prompt in prompts]


def test_random_traffic(serve):
    rng = random.Random(7)
    prompts = prompts_of(*(rng.randrange(1, 200) for _ in range(60)), seed=2)
    prompts += [prompt[: rng.randrange(1, len(prompt) + 1)] for prompt in prompts[:20]]
    counts = [rng.randrange(1, 50) for _ in prompts]
    with serve(make_manifest(engine={"num_gpu_blocks_override": 24})) as (llm, _):
        outputs = generate(llm, prompts, [greedy(count) for count in counts])
    assert outputs == [expected(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]


def test_no_step_mixes_phases(serve):
    prompts = prompts_of(*LENGTHS)
    with serve() as (llm, machine):
        core = llm.llm_engine.engine_core.engine_core
        steps, original = [], core.model_executor.execute_model

        def execute(step, *args, **kwargs):
            machine.executed.clear()
            result = original(step, *args, **kwargs)
            steps.append((phases(machine), sum(1 for name in machine.executed if name.startswith("decode"))))
            return result

        core.model_executor.execute_model = execute
        generate(llm, prompts, greedy(20))
    mixed = [step for step, _ in steps if len(step) > 1]
    # A prompt of one token, or its last one, is decode-shaped: it may share a prefill step.
    assert len(mixed) <= 3
    assert all(decodes <= 1 for _, decodes in steps)


def test_sampling_is_vllms_own(serve):
    prompts = prompts_of(7, 40, 100)
    forbidden = [expected(prompt, 1)[0] for prompt in prompts]
    with serve() as (llm, _):
        seeded = SamplingParams(
            temperature=0.8, top_p=0.9, top_k=20, seed=5, max_tokens=12, ignore_eos=True, detokenize=False
        )
        first = generate(llm, prompts, seeded)
        assert generate(llm, prompts, seeded) == first
        assert [generate(llm, [prompt], seeded)[0] for prompt in prompts] == first, "a seed is the request's own"
        biased = [greedy(1, logit_bias={token: -100}) for token in forbidden]
        assert all(out[0] != token for out, token in zip(generate(llm, prompts, biased), forbidden, strict=True))
        allowed = generate(llm, prompts, greedy(5, allowed_token_ids=[11, 12]))
        assert {token for out in allowed for token in out} <= {11, 12}
        repeated = generate(llm, prompts, greedy(30, allowed_token_ids=[11, 12, 13], presence_penalty=2.0))
        assert all({11, 12, 13} == set(out) for out in repeated)
        mixture = [greedy(10), seeded, greedy(10, repetition_penalty=1.3)]
        mixed = generate(llm, prompts, mixture)
        assert mixed[0] == expected(prompts[0], 10)
        assert mixed[1] == first[1]


def test_logprobs_are_the_programs(serve):
    prompts = prompts_of(9, 30, 70)
    with serve() as (llm, _):
        params = [greedy(6, logprobs=3), greedy(6), greedy(6, logprobs=1)]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    for output, prompt, wanted in zip(outputs, prompts, (3, None, 1), strict=True):
        (completion,) = output.outputs
        assert list(completion.token_ids) == expected(prompt, 6)
        if wanted is None:
            assert completion.logprobs is None
            continue
        tokens = list(prompt)
        for token, logprobs in zip(completion.token_ids, completion.logprobs, strict=True):
            logits = logits_of(tokens).astype(np.float64)
            reference = logits - np.log(np.exp(logits).sum())
            assert len(logprobs) == wanted
            assert logprobs[token].rank == 1
            for candidate, logprob in logprobs.items():
                assert logprob.logprob == pytest.approx(reference[candidate], abs=1e-5)
            tokens.append(token)


def test_n_samples_share_a_prompt(serve):
    (prompt,) = prompts_of(50)
    with serve() as (llm, _):
        params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3


def test_stop_conditions(serve):
    (prompt,) = prompts_of(12)
    want = expected(prompt, 10)
    with serve() as (llm, _):
        stopped = generate(llm, [prompt], greedy(10, stop_token_ids=[want[4]]))[0]
        full = generate(llm, [prompts_of(250)[0]], greedy(50))[0]
    assert stopped == want[: want.index(want[4]) + 1]
    assert len(full) == 6, "a sequence ends at max_model_len"


def test_requests_that_no_program_serves_are_the_clients_error(serve):
    (prompt,) = prompts_of(12)
    with serve() as (llm, _):
        with pytest.raises(VLLMValidationError, match="prompt_logprobs is not supported"):
            generate(llm, [prompt], greedy(4, prompt_logprobs=1))
        with pytest.raises(VLLMValidationError, match="256"):
            generate(llm, [prompts_of(300)[0]], greedy(4))
        assert generate(llm, [prompt], greedy(4)) == [expected(prompt, 4)], "the engine is still up"


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.5},
        {"logprobs": 1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {5: 1.0}},
        {"min_tokens": 3},
        {"allowed_token_ids": [5]},
    ],
)
def test_a_greedy_bundle_refuses_the_rest(serve, more):
    (prompt,) = prompts_of(12)
    with serve(make_manifest(greedy=True)) as (llm, _):
        params = SamplingParams(**{"temperature": 0, "max_tokens": 4, "detokenize": False} | more)
        with pytest.raises(VLLMValidationError, match=f"Only support greedy sampling.*{next(iter(more))}"):
            generate(llm, [prompt], params)
        assert generate(llm, [prompt], greedy(4)) == [expected(prompt, 4)]


def test_differences_come_all_at_once(serve):
    with pytest.raises(BundleMissError) as raised, serve(max_num_seqs=8, max_model_len=128, num_gpu_blocks_override=64):
        pass
    text = str(raised.value)
    assert "max_num_seqs: wanted 8, the bundle has 4" in text
    assert "max_model_len: wanted 128, the bundle has 256" in text
    assert "num_gpu_blocks_override: wanted 64, the bundle has 30" in text
    assert "program decode_b8_c128: not in the bundle; the nearest is decode_b4_c128" in text
    assert "programs, unknown work" in text, "a bundle without records"
    assert "neuron-aot compile" in text


def test_options_in_the_wrong_place_are_refused(serve):
    additional = {"num_seqs_buckets": [1, 4], "neuron_config": {"block_size": 16, "num_seq_buckets": [1, 4]}}
    with pytest.raises(ConfigError) as raised, serve(additional_config=additional):
        pass
    text = str(raised.value)
    assert "additional_config.num_seqs_buckets: " in text
    assert "neuron_config" in text
    assert "num_seqs_buckets" in text
    assert "block_size" in text


def test_neuron_config_is_compared_by_resolved_value(serve):
    same = {"num_batched_tokens_buckets": [16, 64], "num_seqs_buckets": [1, 4], "decode_context_length_buckets": [128]}
    with serve(additional_config={"neuron_config": same}) as (llm, _):
        (prompt,) = prompts_of(12)
        assert generate(llm, [prompt], greedy(4)) == [expected(prompt, 4)]
    with (
        pytest.raises(BundleMissError, match=r"neuron_config.num_seqs_buckets: wanted \[1, 2, 4\]"),
        serve(additional_config={"neuron_config": {**same, "num_seqs_buckets": [1, 2, 4]}}),
    ):
        pass


def test_what_the_user_leaves_open_comes_from_the_bundle(serve, model):
    with serve(max_model_len=None, block_size=None, num_gpu_blocks_override=None, dtype="auto") as (llm, _):
        config = llm.llm_engine.vllm_config
        assert config.model_config.max_model_len == ENGINE["max_model_len"]
        assert config.cache_config.block_size == ENGINE["block_size"]
        assert config.cache_config.num_gpu_blocks == ENGINE["num_gpu_blocks_override"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"enable_lora": True}, "engine.enable_lora"),
        ({"pipeline_parallel_size": 2}, None),
        ({"enable_prompt_embeds": True}, "engine.enable_prompt_embeds"),
        ({"hf_overrides": {"hidden_size": 32}}, "engine.hf_overrides"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"dtype": "bfloat16"}, "dtype: wanted 'bfloat16'"),
        ({"load_format": "dummy"}, "engine.load_format"),
    ],
)
def test_unsupported_features_are_refused(serve, arguments, line):
    with pytest.raises(Exception) as raised, serve(**arguments):
        pass
    if line is not None:
        assert line in str(raised.value)


def test_another_model_is_refused(serve, tmp_path):
    import json

    from fake_bundle import CONFIG

    other = make_model(tmp_path / "other")
    (other / "config.json").write_text(json.dumps({**CONFIG, "rms_norm_eps": 1e-6}))
    with (
        pytest.raises(BundleMissError, match="config.json rms_norm_eps: wanted '1e-06', the bundle has '1e-05'"),
        serve(model=str(other)),
    ):
        pass


def test_a_checkpoint_that_does_not_fit_is_refused_before_the_device(serve, tmp_path):
    from neuron_aot_runtime.contract.errors import CheckpointError

    other = make_model(tmp_path / "other")
    path = other / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"scale", b"other"))
    with pytest.raises(CheckpointError, match="scale: missing"), serve(model=str(other)):
        pass
