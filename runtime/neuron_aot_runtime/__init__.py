"""The serving half of neuron-aot: it loads bundles and runs them; it never traces, lowers or compiles.

Layers, each importing only from those on its right:

    vllm (plugin -> platform -> scheduler, worker -> runner) -> {store, weights, batch, device} -> contract
"""

__version__ = "0.1.0"
