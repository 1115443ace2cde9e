// Gradients of a dense or packed call: dq, dk, dv, dbias, dsinks. Null outputs are not wanted.
#pragma once
#include "arguments.hpp"

namespace tilewise {

void backward(const BackwardArguments&);

}  // namespace tilewise
