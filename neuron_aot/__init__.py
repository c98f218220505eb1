"""The toolchain of neuron-aot: everything that makes bundles.

    cli -> {pipeline, verify} -> {make, execute} -> {models, lower, codegen, store, schedule, plan}
        -> {program, recipe} -> neuron_aot_runtime

Members in braces do not import each other; ``pipeline`` and ``make`` (one program, in a worker process) hand plain
data (``program``) between them. ``tests/unit/test_imports.py`` holds the layers.
"""

__version__ = "0.1.0"
