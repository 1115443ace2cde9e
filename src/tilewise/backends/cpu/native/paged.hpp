// Ragged attention over pages: decode, chunked prefill and prefill rows in one call.
#pragma once
#include "arguments.hpp"

namespace tilewise {

ValueError paged(const PagedArguments& a);  // anything but ok: nothing was written

}  // namespace tilewise
