// The calls of calls.hpp as custom calls of XLA: JAX reaches the kernels from inside jit, with no Python on the way.
#pragma once
#include <nanobind/nanobind.h>

namespace tilewise {

nanobind::dict ffi_handlers();  // name -> capsule of the handler

}  // namespace tilewise
