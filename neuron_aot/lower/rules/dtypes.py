"""PyTorch dtypes as the module has them: 64-bit integers become 32-bit, as the Neuron compiler would do anyway."""

from __future__ import annotations

import jax.numpy as jnp
import torch

_JAX = {
    torch.float32: jnp.float32,
    torch.bfloat16: jnp.bfloat16,
    torch.int64: jnp.int32,
    torch.int32: jnp.int32,
    torch.bool: jnp.bool_,
}


def jax_dtype(dtype: torch.dtype | None):
    """The JAX dtype of a PyTorch one (None stays None). Raises KeyError for one that no program uses."""
    return None if dtype is None else jnp.dtype(_JAX[dtype])
