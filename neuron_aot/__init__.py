"""The toolchain of neuron-aot: everything that makes bundles.

    cli -> pipeline -> {models, lower, codegen, store, schedule, plan} -> {program, recipe} -> neuron_aot_runtime

Members in braces do not import each other; ``pipeline`` hands plain data (``program``) between them.
"""

__version__ = "0.1.0"
