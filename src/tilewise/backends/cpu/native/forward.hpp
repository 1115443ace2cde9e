// Dense and packed attention, forward: out and, if asked for, lse.
#pragma once
#include "arguments.hpp"

namespace tilewise {

void forward(const AttentionArguments& arguments);

}  // namespace tilewise
