// The algebra of attention states: (out, lse) over different keys of the same rows becomes the state over all of them.
#pragma once
#include "arguments.hpp"

namespace tilewise {

void merge(const MergeArguments& a);

}  // namespace tilewise
