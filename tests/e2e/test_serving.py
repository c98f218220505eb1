"""Real bundles of a tiny model through vLLM: LLM and the OpenAI-compatible server, in processes of their own."""

import os
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from reference import TOLERANCE, differences
from serving import compile_bundle, free_port, generate, running, start_server, tree

pytest.importorskip("vllm")

ENGINE = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 4,
    "block_size": 16,
    "num_gpu_blocks_override": 80,
}
NEURON = {
    "num_batched_tokens_buckets": [32, 128],
    "num_seqs_buckets": [1, 4],
    "decode_context_length_buckets": [128],
    "prefill_context_length_buckets": [256],
}


@pytest.fixture(scope="session")
def model(tiny):
    return tiny("gqa")


@pytest.fixture(scope="session")
def served(tmp_path_factory, model):
    """(reference, model) of a bundle that returns logits."""
    return compile_bundle(model, tmp_path_factory.mktemp("served"), "tiny", ENGINE, NEURON), str(model)


@pytest.fixture(scope="session")
def greedy(tmp_path_factory, model):
    """The same, with the argmax in the programs."""
    neuron = {**NEURON, "on_device_sampling_config": {"all_greedy": True}}
    return compile_bundle(model, tmp_path_factory.mktemp("greedy"), "greedy", ENGINE, neuron), str(model)


def prompts_of(*lengths):
    rng = random.Random(0)
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


def test_greedy_tokens_are_those_of_transformers(served, tmp_path):
    reference, model = served
    before = tree(reference)
    prompts = prompts_of(3, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 129, 200, 256, 300, 400)
    # Together (mixed batches, segments), again (prefix cache hits), and alone.
    rounds = generate(
        reference, model, tmp_path / "result", prompts=prompts, max_tokens=48, rounds=["together", "together", "alone"]
    )["rounds"]
    for tokens in rounds:
        assert all(len(sequence) == 48 for sequence in tokens)
        assert [d for d in differences(model, prompts, tokens) if d.deficit > TOLERANCE] == []
    assert tree(reference) == before, "serving writes nothing into the store"


def test_greedy_programs_give_the_same_tokens(greedy, tmp_path):
    reference, model = greedy
    prompts = prompts_of(5, 40, 130)
    (tokens,) = generate(reference, model, tmp_path / "result", prompts=prompts, max_tokens=24, rounds=["together"])[
        "rounds"
    ]
    assert [d for d in differences(model, prompts, tokens) if d.deficit > TOLERANCE] == []


# The server


@pytest.fixture(scope="module")
def server(served, tmp_path_factory):
    reference, model = served
    with running(reference, model, log=tmp_path_factory.mktemp("server") / "log") as found:
        yield found


def test_streaming_gives_the_tokens_of_one_answer(server, served):
    _, model = served
    (prompt,) = prompts_of(60)
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    status, whole = server.post("/v1/completions", logprobs=0, return_tokens_as_token_ids=True, **body)
    assert status == 200
    tokens = [int(token.removeprefix("token_id:")) for token in whole["choices"][0]["logprobs"]["tokens"]]
    assert [d for d in differences(model, [prompt], [tokens]) if d.deficit > TOLERANCE] == []
    chunks = server.stream("/v1/completions", **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == whole["choices"][0]["text"]
    assert len(chunks) > 8


def test_chat_and_every_sampling_option(server):
    message = [{"role": "user", "content": "hello"}]
    for options in (
        {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 3},
        {"temperature": 0.5, "min_p": 0.1, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"temperature": 0, "repetition_penalty": 1.2, "logit_bias": {"5": 3}, "min_tokens": 4},
        {"temperature": 1, "n": 3, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0, "bad_words": ["a"], "stop": ["x"]},
    ):
        status, answer = server.post("/v1/chat/completions", messages=message, max_tokens=8, **options)
        assert status == 200, answer
        assert len(answer["choices"]) == options.get("n", 1)


def test_structured_output_follows_its_grammar(server):
    status, answer = server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "yes or no?"}],
        max_tokens=8,
        temperature=0,
        structured_outputs={"choice": ["yes", "no"]},
    )
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] in ("yes", "no")


def test_what_cannot_be_served_is_the_clients_error_and_the_server_stays(server):
    status, answer = server.post("/v1/completions", prompt=prompts_of(600)[0], max_tokens=4)
    assert status == 400
    assert "512" in answer["error"]["message"]
    status, answer = server.post("/v1/completions", prompt=[1, 2, 3], max_tokens=4, prompt_logprobs=1)
    assert status == 400
    assert "prompt_logprobs is not supported" in answer["error"]["message"]
    assert server.post("/v1/completions", prompt=[1, 2, 3], max_tokens=4)[0] == 200


def test_metrics_are_those_of_the_features_guide(server):
    server.post("/v1/completions", prompt=prompts_of(20)[0], max_tokens=4, temperature=0)
    text = server.get("/metrics")
    values = {}
    for line in text.splitlines():
        if line.startswith("vllm_neuron:"):
            key, _, value = line.rpartition(" ")
            values[key] = float(value)
    label = '{bucket_name="%s",model_name="tiny",rank_id="0"}'
    rank = '{model_name="tiny",rank_id="0"}'
    assert values["vllm_neuron:neff_execution_count_total" + label % "prefill_s32_c32"] >= 1
    assert values["vllm_neuron:neff_execution_count_total" + label % "decode_b1_c128"] >= 3
    assert values["vllm_neuron:num_batched_tokens_padding_count" + label % "prefill_s32_c32"] >= 1
    assert values["vllm_neuron:num_seqs_padding_count" + label % "decode_b1_c128"] >= 3
    assert values["vllm_neuron:compilation_time_seconds" + label % "prefill_s32_c32"] == 0
    assert 0 < values["vllm_neuron:startup_time_seconds" + rank] < 120
    assert values["vllm_neuron:model_load_time_seconds" + rank] > 0
    assert values["vllm_neuron:model_load_size_bytes" + rank] > 100_000


def test_a_greedy_bundle_refuses_other_sampling(greedy, tmp_path):
    reference, model = greedy
    with running(reference, model, log=tmp_path / "log") as server:
        status, answer = server.post("/v1/completions", prompt=[1, 2, 3], max_tokens=4, temperature=0.7)
        assert status == 400
        assert "Only support greedy sampling" in answer["error"]["message"]
        assert "temperature=0.7" in answer["error"]["message"]
        assert server.post("/v1/completions", prompt=[1, 2, 3], max_tokens=4, temperature=0)[0] == 200


# What ends the start


def refused(reference, model, *arguments, tmp_path):
    """(exit code, the error that the user sees) of a server that must not come up."""
    log = tmp_path / "log"
    process = start_server(reference, model, *arguments, port=free_port(), log=log)
    try:
        code = process.wait(240)
    finally:
        process.kill()
    text = log.read_text()
    assert "Traceback" not in text, text[-4000:]
    return code, text[text.index("error: ") :]


def test_a_miss_lists_every_difference_and_exits_with_3(served, tiny, tmp_path):
    reference, _ = served
    code, text = refused(reference, str(tiny("mha")), "--max-num-seqs", "8", "--block-size", "32", tmp_path=tmp_path)
    assert code == 3
    for line in (
        "config.json num_key_value_heads: wanted 4, the bundle has 2",
        "max_num_seqs: wanted 8, the bundle has 4",
        "block_size: wanted 32, the bundle has 16",
        "program decode_b8_c512: not in the bundle; the nearest is decode_b4_c512",
        "  - to make: ",
        "neuron-aot compile",
    ):
        assert line in text


def test_the_next_command_of_a_miss_makes_what_was_asked_for(served, tmp_path):
    reference, model = served
    copy = tmp_path / "store"
    shutil.copytree(reference.partition("@")[0], copy)
    options = ("--max-num-seqs", "3", "--max-model-len", "256")
    _, text = refused(f"{copy}@tiny", str(model), *options, tmp_path=tmp_path)
    command, _, rest = (
        next(line for line in text.splitlines() if "next:" in line).partition("next:")[2].partition("   or ")
    )
    assert rest.startswith("leave the options out")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    covered = shlex.join(["neuron-aot", "coverage", f"{copy}@tiny", "--", "vllm", "serve", str(model), *options])
    for line in (command, covered):  # a user pastes them into a shell
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(line, shell=True, check=False, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_misplaced_option_exits_with_2(served, tmp_path):
    code, text = refused(*served, "--additional-config", '{"num_seqs_buckets": [1, 4]}', tmp_path=tmp_path)
    assert code == 2
    assert "num_seqs_buckets: is not an option of additional_config; it belongs under neuron_config" in text


@pytest.mark.parametrize(("harm", "code"), [("flip", 6), ("remove", 4)])
def test_a_damaged_artifact_is_named_and_never_loaded(served, tmp_path, harm, code):
    reference, model = served
    store = tmp_path / "store"
    shutil.copytree(reference.partition("@")[0], store)
    blob = max((store / "blobs").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
        blob.write_bytes(data)
    else:
        blob.unlink()
    found, text = refused(f"{store}@tiny", model, tmp_path=tmp_path)
    assert found == code
    assert f"sha256:{blob.name}" in text


def test_a_checkpoint_with_missing_weights_exits_with_10(served, tmp_path):
    reference, model = served
    other = tmp_path / "model"
    shutil.copytree(model, other)
    path = other / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"model.norm.weight", b"model.nurm.weight"))
    code, text = refused(reference, str(other), tmp_path=tmp_path)
    assert code == 10
    assert "model.norm.weight: missing" in text
