// The decode kernel for a call's dtypes, behind plain functions.
#pragma once
#include <cstddef>

#include "states.hpp"

namespace tilewise {

struct DecodeKernel {
  int64_t (*columns)(int64_t v_dim);  // of acc in a State
  void (*run)(const PagedArguments&, const RowBlock&, Range, float* state);
  void (*finish)(const PagedArguments&, const RowBlock&, float* states, int64_t count);
};
const DecodeKernel& decode_kernel(DType q, DType pages);  // neither float64

}  // namespace tilewise
