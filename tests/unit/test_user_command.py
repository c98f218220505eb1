"""The user's serve command: what vLLM would make of it, read without vLLM."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from neuron_aot_runtime.contract.errors import ConfigError, UsageError
from neuron_aot_runtime.contract.fields import ENGINE

from neuron_aot import serve_flags
from neuron_aot.user_command import find_model_config, parse_command, read_model_config


def parse(text: str):
    return parse_command(["vllm", "serve", *text.split()])


@pytest.mark.parametrize(
    ("flags", "engine"),
    [
        ("m --max-model-len 8192", {"max_model_len": 8192}),
        ("m --max_model_len=8K", {"max_model_len": 8192}),
        ("m --max-model-len auto", {"max_model_len": None}),
        ("m --max-num-batched-tokens 2.5k", {"max_num_batched_tokens": 2500}),
        ("m -tp 8 --dtype auto", {"tensor_parallel_size": 8, "dtype": None}),
        ("m --dtype half", {"dtype": "float16"}),
        ("m --no-enable-prefix-caching --enforce-eager", {"enable_prefix_caching": False, "enforce_eager": True}),
        ("--enforce-eager m --port 8000", {"enforce_eager": True}),
        ("--served-model-name a b --port 80 m", {"served_model_name": ["a", "b"]}),
        ("m --enable-auto-tool-choice --tool-call-parser hermes --api-key a b", {}),
        ("m --cpu-offload-gb 0.0 --max-model-len -1", {"cpu_offload_gb": 0, "max_model_len": None}),
        ("m -O3 --hf-token", {"optimization_level": 3, "hf_token": True}),
        ("--model m --gpu-memory-utilization 0.9", {"gpu_memory_utilization": 0.9}),
    ],
)
def test_flags(flags, engine):
    command = parse(flags)
    assert command.model == "m" and command.engine == engine and command.additional_config == {}


def test_additional_config_whole_and_by_dotted_keys():
    neuron = {"num_seqs_buckets": [1, 4]}
    command = parse_command(["vllm", "serve", "m", "--additional-config", json.dumps({"neuron_config": neuron})])
    assert command.additional_config == {"neuron_config": neuron}
    assert parse("m --additional-config.neuron_config.num_seqs_buckets [1,4]") == command


def test_a_config_file_gives_way_to_the_command_line(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text("model: m\nmax-model-len: 4096\nmax-num-seqs: 4\nenforce-eager: true\nserved-model-name: [a, b]\n")
    command = parse(f"--config {path} --max-num-seqs 2")
    assert command.model == "m" and command.engine == {
        "max_model_len": 4096, "max_num_seqs": 2, "enforce_eager": True, "served_model_name": ["a", "b"],
    }  # fmt: skip
    with pytest.raises(UsageError, match="cannot read"):
        parse(f"m --config {tmp_path}/absent.yaml")


@pytest.mark.parametrize(
    "start", ["/opt/bin/vllm serve", "A=1 vllm serve", "python3 -m vllm.entrypoints.openai.api_server --model"]
)
def test_other_ways_to_start_the_same_server(start):
    assert parse_command([*start.split(), "m", "--max-num-seqs", "2"]).engine == {"max_num_seqs": 2}


def test_what_vllm_refuses_is_refused():
    with pytest.raises(ConfigError) as caught:
        parse("m --max-model-length 8192 --no-such thing stray extra")
    assert caught.value.details[0] == "--max-model-length: vLLM has no such flag; did you mean --max-model-len?"
    assert len(caught.value.details) == 2
    with pytest.raises(ConfigError, match="wants a value"):
        parse("m --max-model-len --enforce-eager")
    with pytest.raises(ConfigError) as caught:
        parse("m --enforce-eager stray")
    assert caught.value.details == ("stray: a word that belongs to no flag",)
    for words in (["ls", "-l"], ["vllm", "serve", "--port", "80"], []):
        with pytest.raises(UsageError):
            parse_command(words)


def test_a_model_is_found_in_a_directory_in_the_cache_or_where_it_is_said(tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--a--b"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs" / "main").write_text("c0ffee\n")
    (snapshot / "snapshots" / "c0ffee").mkdir(parents=True)
    (snapshot / "snapshots" / "c0ffee" / "config.json").write_text('{"hidden_size": 1}')
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    path = find_model_config(parse("a/b"))
    assert read_model_config(path) == {"hidden_size": 1}
    assert find_model_config(parse(str(path.parent))) == find_model_config(parse("x/y"), path.parent) == path
    with pytest.raises(UsageError, match=r"the config.json of x/y is not on this machine"):
        find_model_config(parse("x/y"))
    path.write_text("[]")
    with pytest.raises(UsageError, match="holds no JSON object"):
        read_model_config(path)


@pytest.mark.e2e
def test_the_flags_are_vllms():
    code = """
import json
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
kinds = {0: "BOOLEAN", "+": "MULTIPLE", "*": "MULTIPLE", "?": "OPTIONAL"}
found = [(a.dest, kinds.get(a.nargs, "ONE"), a.option_strings) for a in make_arg_parser(FlexibleArgumentParser())._actions]
print(json.dumps([item for item in found if item[2] and item[0] != "help"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    by_kind = {
        kind: {name for name, own, _ in found if own == kind} for kind in ("BOOLEAN", "MULTIPLE", "OPTIONAL", "ONE")
    }
    assert by_kind["BOOLEAN"] == serve_flags.BOOLEAN and by_kind["MULTIPLE"] == serve_flags.MULTIPLE
    assert by_kind["OPTIONAL"] == serve_flags.OPTIONAL and by_kind["ONE"] - set(ENGINE) == serve_flags.SERVER
    for name, _, flags in found:
        for flag in flags:
            if flag.startswith("--no-") or flag.removeprefix("--").replace("-", "_") == name:
                continue
            assert serve_flags.ALIASES[flag] == name
