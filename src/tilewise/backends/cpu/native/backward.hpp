// Gradients of a dense or packed call: dq, dk, dv, and those of bias, sinks and lse's own use. Null outputs are not wanted.
#pragma once
#include "arguments.hpp"

namespace tilewise {

void backward(const BackwardArguments&);

}  // namespace tilewise
