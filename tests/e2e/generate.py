"""vLLM's LLM on a bundle, in a process of its own: python generate.py REFERENCE MODEL RESULT < job.json

job: {"prompts": [[token, …], …], "max_tokens": n, "rounds": ["together" | "alone", …], "sweep": [[length, …], …]}
The sweep, batches of prompts of these lengths, comes first. RESULT, a file: {"rounds": [[[token, …], …], …],
"executed": {program name: times}, "children": [command line of each process started, but for vLLM's own]}
"""

import json
import os
import random
import sys
import threading
import time


def main() -> None:
    reference, model, result = sys.argv[1:]
    job = json.load(sys.stdin)
    os.environ["NEURON_COMPILED_ARTIFACTS"] = reference
    from neuron_aot_runtime.vllm import engine_args
    from vllm import LLM, SamplingParams

    children: set[str] = set()
    threading.Thread(target=watch_children, args=(children,), daemon=True).start()
    llm = LLM(**(engine_args(reference) | {"model": model, "disable_log_stats": True}))

    def tokens_of(prompts, max_tokens):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    rng = random.Random(0)
    for lengths in job.get("sweep", ()):
        tokens_of([[rng.randrange(200) for _ in range(length)] for length in lengths], 3)
    rounds = []
    for kind in job["rounds"]:
        if kind == "together":
            rounds.append(tokens_of(job["prompts"], job["max_tokens"]))
        else:
            rounds.append([tokens_of([prompt], job["max_tokens"])[0] for prompt in job["prompts"]])
    with open(result, "w") as file:  # stdout belongs to vLLM's log
        json.dump({"rounds": rounds, "executed": executions(), "children": sorted(children)}, file)


def executions() -> dict[str, int]:
    """How often each program ran: the worker's counters, as /metrics would show them."""
    from prometheus_client import CollectorRegistry, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return {
        sample.labels["bucket_name"]: int(sample.value)
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "vllm_neuron:neff_execution_count_total"
    }


def watch_children(found: set[str]) -> None:
    """Note every descendant that is not a fork of this process (vLLM's engine and workers are)."""
    import psutil

    own = psutil.Process()
    executable = own.exe()
    while True:
        for child in own.children(recursive=True):
            try:
                if child.exe() != executable:
                    found.add(" ".join(child.cmdline()))
            except psutil.Error:
                continue
        time.sleep(0.02)


if __name__ == "__main__":
    main()
