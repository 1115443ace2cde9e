// New rows of K and V into the pages, quantised where the pages are 8-bit.
#pragma once
#include "arguments.hpp"

namespace tilewise {

ValueError append(const AppendArguments& a);  // anything but ok: nothing was written

}  // namespace tilewise
