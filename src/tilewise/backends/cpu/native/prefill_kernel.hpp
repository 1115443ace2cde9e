// Many queries of a sequence over its pages: the forward core (forward_block.hpp) with page rows as its source of keys.
#pragma once
#include "states.hpp"

namespace tilewise {

// All rows of the block (of one kv head) over everything they see; writes out and lse.
using PrefillKernel = void (*)(const PagedArguments&, const RowBlock&);
PrefillKernel prefill_kernel(const PagedArguments& a);  // not for float64

}  // namespace tilewise
