"""vLLM's LLM on a bundle, in a process of its own: python generate.py REFERENCE MODEL RESULT < job.json

job: {"prompts": [[token, …], …], "max_tokens": n, "rounds": ["together" | "alone", …]}
RESULT, a file: {"rounds": [[[token, …], …], …]}
"""

import json
import os
import sys


def main() -> None:
    reference, model, result = sys.argv[1:]
    job = json.load(sys.stdin)
    os.environ["NEURON_COMPILED_ARTIFACTS"] = reference
    from neuron_aot_runtime.vllm import engine_args
    from vllm import LLM, SamplingParams

    llm = LLM(**(engine_args(reference) | {"model": model}))
    params = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False)

    def generate(prompts):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    rounds = []
    for kind in job["rounds"]:
        if kind == "together":
            rounds.append(generate(job["prompts"]))
        else:
            rounds.append([generate([prompt])[0] for prompt in job["prompts"]])
    with open(result, "w") as file:  # stdout belongs to vLLM's log
        json.dump({"rounds": rounds}, file)


if __name__ == "__main__":
    main()
