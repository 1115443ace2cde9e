"""Exact attention, tile by tile: one meaning for NumPy, PyTorch, JAX and MLX arrays.

Fused on CPUs; elsewhere plain array code. TPU kernels compile and run emulated, but no TPU has run them yet. Kernels
for Apple and NVIDIA GPUs are planned. tilewise.backends() says what is there.
"""

import tilewise.backends as _backends_package  # noqa: F401  (bound first: the name `backends` is the function below)
from tilewise.attention import attention as attention
from tilewise.attention import attention_backward as attention_backward
from tilewise.backends.tpu.target import target as target
from tilewise.check_values import check_values as check_values
from tilewise.emit import emit as emit
from tilewise.errors import InvalidInput as InvalidInput
from tilewise.errors import OutOfPages as OutOfPages
from tilewise.errors import SlowPathWarning as SlowPathWarning
from tilewise.errors import TilewiseError as TilewiseError
from tilewise.errors import Unsupported as Unsupported
from tilewise.explain import backends as backends
from tilewise.explain import explain as explain
from tilewise.explain import explain_paged as explain_paged
from tilewise.merge import merge as merge
from tilewise.packed import attention_packed as attention_packed
from tilewise.packed import attention_packed_backward as attention_packed_backward
from tilewise.paged_cache import PagedCache as PagedCache
from tilewise.ragged_paged_attention import append_to_pages as append_to_pages
from tilewise.ragged_paged_attention import ragged_paged_attention as ragged_paged_attention
from tilewise.spec.problem import Gradients as Gradients
from tilewise.threads import num_threads as num_threads
from tilewise.threads import set_num_threads as set_num_threads

__version__ = "0.1.0"
