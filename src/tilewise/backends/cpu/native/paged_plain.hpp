// Attention over pages in double precision, row by row: for float64 calls.
#pragma once
#include "arguments.hpp"

namespace tilewise {

void paged_plain(const PagedArguments& a);  // values already checked

}  // namespace tilewise
